package profile

import (
	"fmt"
	"math"
	"slices"

	"headroom_exporter/probe/workload"
)

// cluster is requests of similar lengths: their number, and the mean binary
// logarithms of their lengths.
type cluster struct{ n, prompt, output float64 }

// cellsPerOctave is how fine lengths are counted before they are clustered.
const cellsPerOctave = 2

// least is the share of the requests or of the tokens that a cluster must
// have to be worth a class.
const least = 0.05

// clusters makes classes of requests whose lengths are alike: as many as
// possible up to a number, under the conditions that each two of them are at
// least a factor of two apart in mean prompt or mean output length and that
// each has at least 5 % of the requests or of the tokens.
//
// Ward's method (1963) on the logarithms of the lengths gives the first
// clusters for each number, and Lloyd's method (1982) moves their borders
// to where each request belongs to the nearest centre. Neither draws anything.
func clusters(records []workload.Record, most int) []workload.Class {
	cells := countCells(records)
	tree := ward(cells, most)
	for k := len(tree); k > 1; k-- {
		centres := lloyd(cells, tree[k-1])
		if good(records, centres) {
			slices.SortFunc(centres, func(a, b cluster) int {
				switch {
				case a.prompt != b.prompt && a.prompt < b.prompt:
					return -1
				case a.prompt != b.prompt:
					return 1
				}
				return int(math.Copysign(1, a.output-b.output))
			})
			return lengthClasses(centres)
		}
	}
	return []workload.Class{{Name: "all", Weight: 1}}
}

// countCells sums requests up whose lengths are in the same part of an octave.
func countCells(records []workload.Record) []cluster {
	sums := map[[2]int]*cluster{}
	var order []*cluster
	for i := range records {
		x, y := math.Log2(float64(records[i].Prompt)), math.Log2(float64(records[i].Output))
		cell := [2]int{int(x * cellsPerOctave), int(y * cellsPerOctave)}
		c := sums[cell]
		if c == nil {
			c = &cluster{}
			sums[cell] = c
			order = append(order, c)
		}
		c.n++
		c.prompt += x
		c.output += y
	}
	cells := make([]cluster, len(order))
	for i, c := range order {
		cells[i] = cluster{c.n, c.prompt / c.n, c.output / c.n}
	}
	return cells
}

func join(a, b cluster) cluster {
	n := a.n + b.n
	return cluster{n, (a.prompt*a.n + b.prompt*b.n) / n, (a.output*a.n + b.output*b.n) / n}
}

func distance(a, b cluster) float64 {
	x, y := a.prompt-b.prompt, a.output-b.output
	return x*x + y*y
}

// ward merges clusters, each time the two by which the sum of squares grows
// least. Element k-1 of the result are the last k clusters, up to the most.
func ward(cells []cluster, most int) [][]cluster {
	left := slices.Clone(cells)
	tree := make([][]cluster, min(most, len(left)))
	for {
		if len(left) <= most {
			tree[len(left)-1] = slices.Clone(left)
		}
		if len(left) == 1 {
			return tree
		}
		bestI, bestJ, best := 0, 1, math.Inf(1)
		for i := range left {
			for j := i + 1; j < len(left); j++ {
				if cost := left[i].n * left[j].n / (left[i].n + left[j].n) * distance(left[i], left[j]); cost < best {
					bestI, bestJ, best = i, j, cost
				}
			}
		}
		left[bestI] = join(left[bestI], left[bestJ])
		left = slices.Delete(left, bestJ, bestJ+1)
	}
}

// lloyd moves centres to the middle of the cells that are nearest to them until nothing changes.
func lloyd(cells, centres []cluster) []cluster {
	centres = slices.Clone(centres)
	for range 100 {
		moved := make([]cluster, len(centres))
		for _, c := range cells {
			best := nearest(c, centres)
			if moved[best].n == 0 {
				moved[best] = c
			} else {
				moved[best] = join(moved[best], c)
			}
		}
		moved = slices.DeleteFunc(moved, func(c cluster) bool { return c.n == 0 })
		if slices.Equal(moved, centres) {
			break
		}
		centres = moved
	}
	return centres
}

func nearest(c cluster, centres []cluster) int {
	best := 0
	for i := range centres {
		if distance(c, centres[i]) < distance(c, centres[best]) {
			best = i
		}
	}
	return best
}

// good says whether classes with these centres can be told apart and are worth their probes.
func good(records []workload.Record, centres []cluster) bool {
	type sums struct{ n, prompt, output float64 }
	parts := make([]sums, len(centres))
	var all sums
	for i := range records {
		r := &records[i]
		x := cluster{1, math.Log2(float64(r.Prompt)), math.Log2(float64(r.Output))}
		for _, s := range []*sums{&parts[nearest(x, centres)], &all} {
			s.n++
			s.prompt += float64(r.Prompt)
			s.output += float64(r.Output)
		}
	}
	for i, a := range parts {
		if a.n < least*all.n && a.prompt+a.output < least*(all.prompt+all.output) {
			return false
		}
		for _, b := range parts[:i] {
			if ratio(a.prompt/a.n, b.prompt/b.n) < apart && ratio(a.output/a.n, b.output/b.n) < apart {
				return false
			}
		}
	}
	return true
}

// lengthClasses are classes that match the nearest centre, named by it.
func lengthClasses(centres []cluster) []workload.Class {
	var classes []workload.Class
	taken := map[string]bool{}
	for _, c := range centres {
		m := workload.Match{Prompt: math.Round(math.Exp2(c.prompt)*10) / 10, Output: math.Round(math.Exp2(c.output)*10) / 10}
		name := fmt.Sprintf("p%s-o%s", short(m.Prompt), short(m.Output))
		for base, n := name, 2; taken[name]; n++ {
			name = fmt.Sprintf("%s-%d", base, n)
		}
		taken[name] = true
		classes = append(classes, workload.Class{Name: name, Weight: 1, Match: &m})
	}
	return classes
}

// short writes a length with two digits, thousands as k.
func short(x float64) string {
	unit := math.Pow(10, math.Floor(math.Log10(max(x, 1)))-1)
	if unit > 1 {
		x = math.Round(x/unit) * unit
	}
	if x >= 1000 {
		return fmt.Sprintf("%gk", x/1000)
	}
	return fmt.Sprintf("%.0f", x)
}

// maxCells bounds the joint lengths of a class, as far as the buckets allow.
const maxCells = 400

// joint sums the lengths up to so few pairs that a person can read the file:
// all of them when they are few, else one for each part of an octave with the
// mean lengths of its requests, so that the means stay. No pair stands for
// lengths of two buckets, so that the histograms stay too.
func joint(records []workload.Record, bounds []float64) workload.Joint {
	type key struct{ prompt, output, promptBucket, outputBucket int }
	sums := map[key]*cluster{}
	sum := func(of func(float64) int, most int) bool {
		clear(sums)
		for i := range records {
			x, y := float64(records[i].Prompt), float64(records[i].Output)
			k := key{prompt: of(x), output: of(y)}
			k.promptBucket, _ = slices.BinarySearch(bounds, x)
			k.outputBucket, _ = slices.BinarySearch(bounds, y)
			c := sums[k]
			if c == nil {
				if len(sums) == most {
					return false
				}
				c = &cluster{}
				sums[k] = c
			}
			c.n++
			c.prompt += x
			c.output += y
		}
		return true
	}
	if !sum(func(x float64) int { return int(x) }, maxCells) {
		parts, most := 8.0, maxCells
		for !sum(func(x float64) int { return int(math.Log2(x) * parts) }, most) {
			if parts /= 2; parts < 1 {
				// The buckets alone are about so fine: take what they need.
				most = len(records)
			}
		}
	}
	cells := make(workload.Joint, 0, len(sums))
	for _, c := range sums {
		cells = append(cells, workload.JointCell{Prompt: int(math.Round(c.prompt / c.n)), Output: int(math.Round(c.output / c.n)), Weight: c.n})
	}
	slices.SortFunc(cells, func(a, b workload.JointCell) int {
		if a.Prompt != b.Prompt {
			return a.Prompt - b.Prompt
		}
		if a.Output != b.Output {
			return a.Output - b.Output
		}
		return int(math.Copysign(1, a.Weight-b.Weight))
	})
	return cells
}
