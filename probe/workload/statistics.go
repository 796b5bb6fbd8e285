package workload

import (
	"math"
	"slices"
	"time"
)

// Statistics describe requests in the order of time. What cannot be known,
// such as a rate per minute of a trace of seconds, is NaN.
type Statistics struct {
	Requests int
	// Span is from the first to the last request; Rate is Requests / Span.
	Span time.Duration
	Rate float64
	// GapCV is the coefficient of variation of the inter-arrival gaps.
	GapCV float64
	// Second, TenSeconds and Minute describe the counts in whole windows of
	// these lengths, from the first request on; a last part of a window is left out.
	Second, TenSeconds, Minute Counts
	Prompt, Output             LengthStatistics
	// PrefixHitRatio is the share of prompt tokens in leading blocks that were
	// seen before: what an endless prefix cache would have held.
	PrefixHitRatio float64
}

// Counts describe the number of requests in windows of one length.
type Counts struct {
	Min, Mean, Max float64
	// IDC is the index of dispersion, variance / mean: 1 for Poisson arrivals.
	IDC float64
	// DriftFreeIDC is the same from the differences of neighbours,
	// mean((N[i+1]-N[i])^2) / (2 mean N), on which a slow change of the rate has no effect.
	DriftFreeIDC float64
	// PeakToMean is Max / Mean.
	PeakToMean float64
}

// LengthStatistics describe lengths in tokens. Percentiles are interpolated
// linearly between the neighbours in order.
type LengthStatistics struct {
	Mean, P50, P90, P99, Max float64
}

// Describe returns the statistics of records in the order of time.
func Describe(records []Record, blockSize int) Statistics {
	nan := math.NaN()
	s := Statistics{Requests: len(records), Rate: nan, GapCV: nan, PrefixHitRatio: PrefixHitRatio(records, blockSize)}
	if len(records) > 0 {
		s.Span = records[len(records)-1].At - records[0].At
	}
	if s.Span > 0 {
		s.Rate = float64(len(records)) / s.Span.Seconds()
	}
	s.GapCV = gapCV(records)
	s.Second = Windows(records, time.Second)
	s.TenSeconds = Windows(records, 10*time.Second)
	s.Minute = Windows(records, time.Minute)
	s.Prompt = describeLengths(records, func(r *Record) int { return r.Prompt })
	s.Output = describeLengths(records, func(r *Record) int { return r.Output })
	return s
}

func gapCV(records []Record) float64 {
	n := float64(len(records) - 1)
	if n < 1 {
		return math.NaN()
	}
	mean := (records[len(records)-1].At - records[0].At).Seconds() / n
	if !(mean > 0) {
		return math.NaN()
	}
	sum := 0.0
	for i := 1; i < len(records); i++ {
		d := (records[i].At - records[i-1].At).Seconds() - mean
		sum += d * d
	}
	return math.Sqrt(sum/n) / mean
}

// maxWindows bounds the memory for counts: 190 days of seconds.
const maxWindows = 1 << 24

// Windows counts the requests in whole windows of a length.
func Windows(records []Record, window time.Duration) Counts {
	nan := math.NaN()
	unknown := Counts{nan, nan, nan, nan, nan, nan}
	counts := windowCounts(records, window)
	if len(counts) == 0 {
		return unknown
	}
	c := unknown
	n := float64(len(counts))
	total := 0.0
	c.Min, c.Max = math.Inf(1), 0
	for _, x := range counts {
		total += x
		c.Min, c.Max = min(c.Min, x), max(c.Max, x)
	}
	c.Mean = total / n
	if len(counts) < 2 || c.Mean == 0 {
		return c
	}
	squares, differences := 0.0, 0.0
	for i, x := range counts {
		squares += (x - c.Mean) * (x - c.Mean)
		if i > 0 {
			d := x - counts[i-1]
			differences += d * d
		}
	}
	c.IDC = squares / n / c.Mean
	c.DriftFreeIDC = differences / (n - 1) / (2 * c.Mean)
	c.PeakToMean = c.Max / c.Mean
	return c
}

// windowCounts are the counts of the whole windows; nil when there is none, or too many.
func windowCounts(records []Record, window time.Duration) []float64 {
	if len(records) == 0 {
		return nil
	}
	begin := records[0].At
	whole := (records[len(records)-1].At - begin) / window
	if whole < 1 || whole > maxWindows {
		return nil
	}
	counts := make([]float64, whole)
	for i := range records {
		if w := (records[i].At - begin) / window; w < whole {
			counts[w]++
		}
	}
	return counts
}

func describeLengths(records []Record, length func(*Record) int) LengthStatistics {
	nan := math.NaN()
	if len(records) == 0 {
		return LengthStatistics{nan, nan, nan, nan, nan}
	}
	values := make([]int, len(records))
	sum := 0.0
	for i := range records {
		values[i] = length(&records[i])
		sum += float64(values[i])
	}
	slices.Sort(values)
	at := func(p float64) float64 {
		x := p * float64(len(values)-1)
		below := int(x)
		above := min(below+1, len(values)-1)
		return float64(values[below]) + (x-float64(below))*float64(values[above]-values[below])
	}
	return LengthStatistics{
		Mean: sum / float64(len(values)), P50: at(0.5), P90: at(0.9), P99: at(0.99), Max: float64(values[len(values)-1]),
	}
}

// PrefixHitRatio returns the share of prompt tokens in leading blocks that
// were in an earlier prompt; NaN when the records have no blocks.
func PrefixHitRatio(records []Record, blockSize int) float64 {
	seen := seenBlocks{}
	hits, tokens, known := 0, 0, false
	for i := range records {
		r := &records[i]
		known = known || r.Blocks != nil
		hits += seen.hit(r.Blocks, blockSize, r.Prompt)
		tokens += r.Prompt
	}
	if !known {
		return math.NaN()
	}
	return float64(hits) / float64(tokens)
}

// seenBlocks is an endless prefix cache.
type seenBlocks map[uint64]struct{}

// hit returns how many leading tokens of a prompt the cache holds, and adds the prompt to it.
func (s seenBlocks) hit(blocks []uint64, blockSize, prompt int) int {
	held := 0
	for held < len(blocks) {
		if _, ok := s[blocks[held]]; !ok {
			break
		}
		held++
	}
	for _, b := range blocks[held:] {
		s[b] = struct{}{}
	}
	return min(held*blockSize, prompt)
}
