package knee

import (
	"context"
	"errors"
	"iter"
	"slices"
)

// errTurnsOver is of a search that was under way when another one failed.
var errTurnsOver = errors.New("another search failed")

// inTurn runs searches that share an engine, in turn: each puts one load on it
// and waits until the others have put theirs. The engine's heat and what else
// runs on its host drift while knees are searched; so they drift under all of
// them alike, and what is compared and added up was measured in the same hour.
// Only one search runs at a time. One whose loads were void is over, and the others
// go on: what they measure is kept for when it is begun again. After any other
// error none goes on. All errors are returned.
func inTurn(e Engine, searches []func(Engine) error) error {
	var errs []error
	over := false
	var under []func() (struct{}, bool)
	for _, search := range searches {
		next, stop := iter.Pull(func(wait func(struct{}) bool) {
			err := search(&turn{e, wait})
			if errors.Is(err, errTurnsOver) {
				return
			}
			errs = append(errs, err)
			over = over || err != nil && !errors.Is(err, ErrInvalid)
		})
		defer stop()
		under = append(under, next)
	}
	for len(under) > 0 && !over {
		under = slices.DeleteFunc(under, func(next func() (struct{}, bool)) bool {
			more := false
			if !over {
				_, more = next()
			}
			return !more
		})
	}
	return errors.Join(errs...)
}

// turn is the engine as one search of several has it: a load waits for the search's turn.
type turn struct {
	Engine
	wait func(struct{}) bool
}

func (t *turn) Run(ctx context.Context, l *Load, m Monitor) (*Observation, error) {
	if !t.wait(struct{}{}) {
		return nil, errTurnsOver
	}
	return t.Engine.Run(ctx, l, m)
}
