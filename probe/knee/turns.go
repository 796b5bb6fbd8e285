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
// Only one search runs at a time. After the first error, which is returned, none goes on.
func inTurn(e Engine, searches []func(Engine) error) (err error) {
	var under []func() (struct{}, bool)
	for _, search := range searches {
		next, stop := iter.Pull(func(wait func(struct{}) bool) {
			if end := search(&turn{e, wait}); err == nil {
				err = end
			}
		})
		defer stop()
		under = append(under, next)
	}
	for len(under) > 0 && err == nil {
		under = slices.DeleteFunc(under, func(next func() (struct{}, bool)) bool {
			if err != nil {
				return false
			}
			_, more := next()
			return !more
		})
	}
	return err
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
