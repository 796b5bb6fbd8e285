package curve

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"headroom_exporter/capacity"
)

// How much a knee must differ, and how far apart two probes must be, for a
// stored knee to change: less is noise.
const (
	updateBand     = 0.05
	updateInterval = 10 * time.Minute
)

// Outcome is what a new probe did to a stored knee.
type Outcome string

// The outcomes.
const (
	// Added: there was none before, or it was of other lengths or another SLO.
	Added Outcome = "added"
	// Kept: the new one is within the band, or tells nothing.
	Kept Outcome = "kept"
	// Fell: it is lower and in force at once, as provisional.
	Fell Outcome = "fell"
	// Confirmed: a fall was seen again.
	Confirmed Outcome = "confirmed"
	// Waiting: it is higher, which counts when it is seen again.
	Waiting Outcome = "waiting"
	// Rose: it was higher twice.
	Rose Outcome = "rose"
)

// Change is what became of one knee.
type Change struct {
	// Name of the class or mix.
	Name     string   `json:"name"`
	Arrivals Arrivals `json:"arrivals"`
	Outcome  Outcome  `json:"outcome"`
	// Old is the knee that was stored, New the one just found, in requests per second.
	Old Value `json:"old_requests_per_second"`
	New Value `json:"new_requests_per_second"`
}

// String words it.
func (c Change) String() string {
	return fmt.Sprintf("%s under %s arrivals: %s (%s to %s requests/s)", c.Name, c.Arrivals, c.Outcome, rateText(c.Old), rateText(c.New))
}

func rateText(v Value) string {
	if !v.Known() {
		return "none"
	}
	return fmt.Sprintf("%.3g", float64(v))
}

// ErrOtherIdentity is of two curves that are not of the same engine.
var ErrOtherIdentity = errors.New("the curves are of different identities")

// Update returns the stored curve as a new probe of the same identity leaves
// it. A stored knee changes only when the new one differs by more than 5 % and
// more than band, the A/A noise, in two probes at least 10 minutes apart. A
// fall is in force at once, as provisional, for the safe side; a rise waits in
// Knee.Pending for the second probe. Neither curve is changed.
func Update(stored, probed *Curve, band float64) (*Curve, []Change, error) {
	switch {
	case stored.Identity.ID() != probed.Identity.ID():
		return nil, nil, ErrOtherIdentity
	case stored.Source != probed.Source:
		return nil, nil, fmt.Errorf("a %s curve does not update one that was %s", probed.Source, stored.Source)
	case probed.Estimate && !stored.Estimate:
		return nil, nil, errors.New("an estimate does not update a curve that was soaked")
	case !probed.Finished.After(stored.Finished):
		return nil, nil, fmt.Errorf("the probe ended at %s, not after the stored one", probed.Finished.Format(time.RFC3339))
	}
	u := updater{stored: stored, probed: probed, threshold: max(updateBand, band)}
	out := *probed
	out.Classes, out.Mixes = u.classes(), u.mixes()
	if out.AA == nil {
		out.AA = stored.AA
	}
	if out.ColdStart == nil {
		out.ColdStart = stored.ColdStart
	}
	out.Reuse = slices.Clone(stored.Reuse)
	for _, r := range probed.Reuse {
		if !slices.Contains(out.Reuse, r) {
			out.Reuse = append(out.Reuse, r)
		}
	}
	return &out, u.changes, nil
}

// updater goes through the knees of two curves.
type updater struct {
	stored, probed *Curve
	threshold      float64
	changes        []Change
}

// classes are those of the stored curve, then new ones.
func (u *updater) classes() []Class {
	var out []Class
	for i := range u.stored.Classes {
		old := u.stored.Classes[i]
		now := u.probed.class(old.Name)
		switch {
		case now == nil, len(now.Studies) == 0 && u.comparable(&old, now):
			// Nothing new of it. It keeps the bounds it was measured for.
			old.SLO = u.stored.SLOs(&old)
			old.Studies = u.unprobed(old.Studies)
			out = append(out, old)
		case !u.comparable(&old, now):
			out = append(out, u.added(*now))
		default:
			merged := *now
			merged.Studies = u.studies(now.Name, old.Studies, now.Studies)
			out = append(out, merged)
		}
	}
	for i := range u.probed.Classes {
		if u.stored.class(u.probed.Classes[i].Name) == nil {
			out = append(out, u.added(u.probed.Classes[i]))
		}
	}
	return out
}

func (u *updater) added(c Class) Class {
	for i := range c.Studies {
		u.note(c.Name, Added, nil, &c.Studies[i])
	}
	return c
}

// sameLength is how much the mean length of a class may differ between two
// probes: lengths are drawn.
const sameLength = 0.02

// comparable tells whether two classes of one name are of the same requests and bounds.
func (u *updater) comparable(old, now *Class) bool {
	near := func(a, b float64) bool { return max(a, b)-min(a, b) <= sameLength*max(a, b) }
	return near(old.PromptMean, now.PromptMean) && near(old.GenerationMean, now.GenerationMean) &&
		slices.Equal(u.stored.SLOs(old), u.probed.SLOs(now))
}

// SLOs are the bounds of a class: its own, or else the curve's.
func (c *Curve) SLOs(class *Class) []capacity.SLO {
	if len(class.SLO) > 0 {
		return class.SLO
	}
	return c.SLO
}

// mixes are those of the stored curve, then new ones.
func (u *updater) mixes() []Mix {
	var out []Mix
	for i := range u.stored.Mixes {
		old := u.stored.Mixes[i]
		now := mixOf(u.probed.Mixes, &old)
		switch {
		case now == nil:
			old.Study = u.unprobed([]Study{old.Study})[0]
			out = append(out, old)
		case !u.comparableMix(&old, now):
			u.note(now.Name, Added, nil, &now.Study)
			out = append(out, *now)
		default:
			merged := *now
			merged.Study = u.study(now.Name, &old.Study, &now.Study)
			out = append(out, merged)
		}
	}
	for i := range u.probed.Mixes {
		now := &u.probed.Mixes[i]
		if mixOf(u.stored.Mixes, now) == nil {
			u.note(now.Name, Added, nil, &now.Study)
			out = append(out, *now)
		}
	}
	return out
}

func (u *updater) comparableMix(old, now *Mix) bool {
	if !maps.Equal(old.Shares, now.Shares) {
		return false
	}
	for name := range old.Shares {
		if a, b := u.stored.class(name), u.probed.class(name); a == nil || b == nil || !u.comparable(a, b) {
			return false
		}
	}
	return true
}

// mixOf finds a mix by its name and arrivals.
func mixOf(mixes []Mix, like *Mix) *Mix {
	for i := range mixes {
		if mixes[i].Name == like.Name && mixes[i].Arrivals == like.Arrivals {
			return &mixes[i]
		}
	}
	return nil
}

// unprobed are stored studies that the new probe did not repeat.
func (u *updater) unprobed(studies []Study) []Study {
	out := slices.Clone(studies)
	for i := range out {
		out[i].Knee = u.reserved(&out[i])
	}
	return out
}

func (u *updater) studies(name string, old, now []Study) []Study {
	var out []Study
	for i := range old {
		j := slices.IndexFunc(now, func(s Study) bool { return s.Arrivals == old[i].Arrivals })
		if j < 0 {
			out = append(out, u.unprobed(old[i:i+1])...)
			continue
		}
		out = append(out, u.study(name, &old[i], &now[j]))
	}
	for j := range now {
		if !slices.ContainsFunc(old, func(s Study) bool { return s.Arrivals == now[j].Arrivals }) {
			u.note(name, Added, nil, &now[j])
			out = append(out, now[j])
		}
	}
	return out
}

func (u *updater) note(name string, o Outcome, old, now *Study) {
	u.changes = append(u.changes, Change{Name: name, Arrivals: now.Arrivals, Outcome: o, Old: rateOf(old), New: rateOf(now)})
}

// rateOf is a study's knee, the safe rate where no knee was found.
func rateOf(s *Study) Value {
	switch {
	case s == nil:
		return capacity.Unknown()
	case s.Knee != nil && s.Knee.Rate.Known():
		return s.Knee.Rate
	}
	return s.SafeRate
}

// study decides between a stored and a new one of the same traffic.
func (u *updater) study(name string, old, now *Study) Study {
	before, found := rateOf(old), rateOf(now)
	settle := func(o Outcome, s Study) Study {
		u.note(name, o, old, now)
		return s
	}
	pending := u.pendingOf(old)
	again := pending != nil && u.probed.Finished.Sub(pending.Seen) >= updateInterval
	none := old.Status == StatusNoSafeRate
	switch {
	case now.Status == StatusNoSafeRate && none:
		return settle(Kept, *now)
	case now.Status == StatusNoSafeRate:
		// Nothing passed: that is a fall, however far.
		return settle(Fell, *now)
	case !found.Known(), now.Status == StatusInterrupted:
		return settle(Kept, u.kept(old, pending))
	case !before.Known() && !none:
		return settle(Added, *now)
	}
	fell := found < before*Value(1-u.threshold) && !none
	rose := found > before*Value(1+u.threshold) || none
	if now.Status == StatusNotReached && !rose {
		// The load was bounded below the stored knee and tells nothing of it.
		return settle(Kept, u.kept(old, pending))
	}
	switch {
	case fell:
		s := *now
		s.Status, s.Reason = StatusProvisional, fmt.Sprintf("the knee fell from %s to %s requests/s and was seen once", rateText(before), rateText(found))
		s.Knee = withPending(now.Knee, &Pending{Rate: found, Seen: u.probed.Finished})
		return settle(Fell, s)
	case rose && again && (none || pending.Rate > before):
		return settle(Rose, *now)
	case rose:
		if pending == nil || !none && pending.Rate <= before {
			pending = &Pending{Rate: found, Seen: u.probed.Finished}
		}
		return settle(Waiting, u.kept(old, pending))
	case old.Status == StatusProvisional && again && pending.Rate <= before:
		// The fall was seen again. The newer study says how it stands now.
		return settle(Confirmed, *now)
	case old.Status == StatusProvisional:
		return settle(Kept, u.kept(old, pending))
	}
	// Within the band: what was waiting was noise.
	return settle(Kept, u.kept(old, nil))
}

func (u *updater) pendingOf(s *Study) *Pending {
	if s.Knee == nil {
		return nil
	}
	return s.Knee.Pending
}

// kept is a stored study with another pending knee.
func (u *updater) kept(old *Study, pending *Pending) Study {
	s := *old
	s.Knee = withPending(u.reserved(old), pending)
	return s
}

// withPending is a copy of a knee, which may be nil, with another pending one.
func withPending(knee *Knee, pending *Pending) *Knee {
	if knee == nil && pending == nil {
		return nil
	}
	k := UnknownKnee()
	if knee != nil {
		k = *knee
	}
	k.Pending = pending
	return &k
}

// UnknownKnee has nothing known.
func UnknownKnee() Knee {
	u := capacity.Unknown()
	return Knee{
		Rate: u, Low: u, High: u, Watermark: u, CliffFrom: u, CliffTo: u,
		PromptTokenRate: u, GenerationTokenRate: u, Concurrency: u, KVPeak: u,
	}
}

// reserved is a copy of a stored study's knee under the new curve's peak reserve.
func (u *updater) reserved(s *Study) *Knee {
	if s.Knee == nil {
		return nil
	}
	k := *s.Knee
	if u.stored.PeakReserve != u.probed.PeakReserve {
		k.Watermark = Watermark(u.probed.PeakReserve, s.SafeRate, k.Low)
	}
	return &k
}

// Watermark is the recommended most offered rate: what the peak reserve leaves
// of the safe rate or of the knee's lower bound, whichever is known and smaller.
func Watermark(peakReserve float64, safeRate, kneeLow Value) Value {
	bound := safeRate
	if !bound.Known() || kneeLow < bound {
		bound = kneeLow
	}
	return Value(1-peakReserve) * bound
}
