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
	s := Statistics{Requests: len(records), Rate: nan, GapCV: nan, PrefixHitRatio: prefixHitRatio(records, blockSize)}
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

// Windows counts the requests in whole windows of a length, from the first
// request on, and describes the counts.
func Windows(records []Record, window time.Duration) Counts {
	if len(records) == 0 {
		return DescribeCounts(nil)
	}
	return DescribeCounts(WindowCounts(records, records[0].At, records[len(records)-1].At, window))
}

// DescribeCounts describes the numbers of requests in windows that follow each other.
func DescribeCounts(counts []float64) Counts {
	nan := math.NaN()
	c := Counts{nan, nan, nan, nan, nan, nan}
	if len(counts) == 0 {
		return c
	}
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

// maxWindows bounds the memory for counts: 190 days of seconds.
const maxWindows = 1 << 24

// WindowCounts are the numbers of requests in the whole windows between two
// times; nil when there is none, or more than 16 million.
func WindowCounts(records []Record, begin, end, window time.Duration) []float64 {
	whole := (end - begin) / window
	if whole < 1 || whole > maxWindows {
		return nil
	}
	counts := make([]float64, whole)
	for i := range records {
		if w := (records[i].At - begin) / window; w >= 0 && w < whole {
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

// PrefixHits returns, for each record, how many of its leading tokens are in
// blocks that were in an earlier prompt; nil when no record has blocks.
func PrefixHits(records []Record, blockSize int) []int {
	if blockSize < 1 {
		return nil
	}
	seen := seenBlocks{}
	hits := make([]int, len(records))
	for i := range records {
		hits[i] = seen.hit(records[i].Blocks, blockSize, records[i].Prompt)
	}
	if len(seen) == 0 {
		return nil
	}
	return hits
}

// prefixHitRatio is the share of all prompt tokens that are hits; NaN when there are no blocks.
func prefixHitRatio(records []Record, blockSize int) float64 {
	hits := PrefixHits(records, blockSize)
	if hits == nil {
		return math.NaN()
	}
	held, tokens := 0, 0
	for i := range records {
		held += hits[i]
		tokens += records[i].Prompt
	}
	return float64(held) / float64(tokens)
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
