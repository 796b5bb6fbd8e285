package curve

import "headroom_exporter/capacity"

// StepTime is the step-time model of the curve's points. The error wraps
// capacity.ErrStepTime and says why they are no base for one. Its loads are
// those of one rank, of so many over which the curve's load was spread.
func (c *Curve) StepTime(ranks float64) (*capacity.StepTime, error) {
	var points []capacity.StepPoint
	for i := range c.Classes {
		k := &c.Classes[i]
		s := k.poisson()
		if s == nil {
			continue
		}
		computed := 1.0
		if k.PrefixHitRatio > 0 {
			computed = 1 - min(float64(k.PrefixHitRatio), capacity.MaxHitRatio)
		}
		for j := range s.Points {
			p := &s.Points[j]
			perStep := tokensPerStep(p)
			seconds := perStep * float64(p.ITL.Mean)
			// A point with more load than is served grows a queue, and its steps are full.
			if p.Purpose != PurposeProbe && p.Purpose != PurposeSoak || len(p.Faults) > 0 || p.Stopped != "" || !(seconds > 0) ||
				!p.PromptTokenRate.Known() || !p.GenerationTokenRate.Known() {
				continue
			}
			points = append(points, capacity.StepPoint{
				Shape:   k.Name,
				Load:    capacity.NewStepLoad(seconds, computed*float64(p.PromptTokenRate)/ranks, float64(p.GenerationTokenRate)/perStep/ranks, k.PromptMean, k.GenerationMean),
				Seconds: seconds,
			})
		}
	}
	return capacity.FitStepTime(points)
}

// SMClock is the mean clock of the GPU's multiprocessors in hertz while the
// curve's points were measured; unknown when no GPU was read.
func (c *Curve) SMClock() Value {
	var sum, n Value
	for i := range c.Classes {
		for j := range c.Classes[i].Studies {
			for k := range c.Classes[i].Studies[j].Points {
				p := &c.Classes[i].Studies[j].Points[k]
				for _, g := range p.GPUs {
					if p.Purpose == PurposeProbe && g.SMClockHertz > 0 {
						sum, n = sum+g.SMClockHertz, n+1
					}
				}
			}
		}
	}
	return sum / n
}
