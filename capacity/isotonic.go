package capacity

// Isotonic is the sequence that never falls and is nearest to y in least
// squares with the weights w, each above 0, by pooling adjacent violators
// (Ayer et al. 1955; Barlow et al. 1972).
func Isotonic(y, w []float64) []float64 {
	type pool struct {
		mean, weight float64
		length       int
	}
	var pools []pool
	for i := range y {
		p := pool{y[i], w[i], 1}
		for len(pools) > 0 && pools[len(pools)-1].mean >= p.mean {
			last := pools[len(pools)-1]
			pools = pools[:len(pools)-1]
			weight := last.weight + p.weight
			p = pool{(last.mean*last.weight + p.mean*p.weight) / weight, weight, last.length + p.length}
		}
		pools = append(pools, p)
	}
	fit := make([]float64, 0, len(y))
	for _, p := range pools {
		for range p.length {
			fit = append(fit, p.mean)
		}
	}
	return fit
}
