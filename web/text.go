package web

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"headroom_exporter/capacity"
	"headroom_exporter/capacity/curve"
	"headroom_exporter/sidecar"
)

// barCells is the width of a load ratio's bar in a terminal, for the ratios 0 to 1.2.
const barCells = 30

// WriteText writes a snapshot as a report for a terminal.
func WriteText(w io.Writer, s *sidecar.Snapshot) error {
	b := bufio.NewWriter(w)
	e := &s.Engine
	fmt.Fprintln(b, strings.TrimSpace(fmt.Sprintf("%s  %s  %s %s", s.At.UTC().Format(time.DateTime+"Z"), e.URL, e.Type, e.Version)))
	words := describeState(e, readingAge(s, s.At))
	fmt.Fprintf(b, "%s: %s\n", e.State, words.summary)
	if e.Error != "" {
		fmt.Fprintf(b, "  %s\n", e.Error)
	}
	if words.advice != "" {
		fmt.Fprintf(b, "  %s\n", words.advice)
	}
	for i := range s.Replicas {
		writeReplica(b, &s.Replicas[i])
	}
	for _, g := range s.GPU.Readings {
		fmt.Fprintf(b, "\nGPU %d %s  %s\n", g.Index, g.Model, g.UUID)
		row(b, "memory", measure(g.MemoryUsedBytes/gib, "of "+quantity(g.MemorySizeBytes/gib)+" GiB"))
		row(b, "bandwidth", share(g.MemoryBandwidthRatio, "of peak"), share(g.SMActiveRatio, "SM active"))
		row(b, "power", measure(g.PowerWatts, "of "+grouped(g.PowerLimit)+" W"), measure(g.TemperatureCelsius, "°C"))
		if g.Lost != "" {
			row(b, "lost", g.Lost)
		}
		if reasons := throttledBy(&g); len(reasons) > 0 {
			row(b, "throttled", "by "+strings.Join(reasons, ", "))
		}
	}
	if why := gpuError(s.GPU.Status); why != "" {
		fmt.Fprintf(b, "\nno GPU readings: %s\n", why)
	}
	if err := b.Flush(); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	return nil
}

const gib = 1 << 30

// over says what rates rest on when it is less than the usual minute.
func over(span time.Duration) string {
	if span <= 0 || span >= time.Minute {
		return ""
	}
	return fmt.Sprintf("(rates over %.0f s)", span.Seconds())
}

func writeReplica(w io.Writer, r *sidecar.Replica) {
	fmt.Fprintln(w)
	if r.ModelName != "" || r.Engine != "" {
		fmt.Fprintf(w, "%s  rank %s  %s\n", r.ModelName, r.Engine, r.State)
	}
	headline := summarize(r)
	if r.State.Known() && r.Zone != capacity.ZoneUnknown {
		headline += " (" + string(r.Zone) + ")"
	}
	fmt.Fprintf(w, "  %s\n", headline)
	if r.State.Known() {
		if n := curveNotice(&r.Curve); n != nil && !math.IsNaN(r.HeadroomRatio) {
			fmt.Fprintf(w, "  %s\n", n.Title)
			if r.Curve.Curve != nil {
				fmt.Fprintf(w, "  %s\n", n.Text)
			}
		}
		writeNumbers(w, r)
	}
	for _, reason := range r.Reasons {
		fmt.Fprintf(w, "  ! %s\n", reason)
	}
}

func writeNumbers(w io.Writer, r *sidecar.Replica) {
	constraints := capacity.Constraints()
	slices.SortStableFunc(constraints, func(a, b capacity.Constraint) int {
		return rankOf(r, a) - rankOf(r, b)
	})
	for _, c := range constraints {
		ratio := r.LoadRatios[c]
		if math.IsNaN(ratio) {
			continue
		}
		mark := ""
		if c == r.Binding {
			mark = "  <- binds"
		}
		row(w, c.String(), fmt.Sprintf("%s %5.2f%s", bar(ratio), ratio, mark))
	}
	if c := &r.Curve; c.Curve != nil && c.Valid {
		title := "knee"
		if slices.Contains(c.Load.Reasons, curve.ReasonKneeUnknown) {
			title = "knee, at least"
		}
		row(w, title, measure(c.Load.Knee, "requests/s of this mix"), sloWords(c.Curve))
	}
	row(w, "left", measure(r.Left.RequestsPerSecond, "requests/s"), measure(r.Left.PromptTokensPerSecond, "prompt tok/s"), measure(r.Left.GenerationTokensPerSecond, "generated tok/s"),
		count(r.Left.SequenceSlots, "sequence slots"), count(r.Left.TokenSlots, "token slots"))
	row(w, "slots in use", occupancy(r.SequenceSlots, "sequence"), occupancy(r.TokenSlots, "token"))
	row(w, "requests", count(r.RequestsRunning, "running"), count(r.RequestsWaiting, "waiting"), measure(r.Rates.OfferedRequests, "offered/s"), measure(r.Rates.ServedRequests, "served/s"), over(r.RateSpan))
	row(w, "tokens", measure(r.Rates.ComputedPromptTokens, "computed prompt/s"), measure(r.Rates.GenerationTokens, "generated/s"))
	row(w, "latency", latency("TTFT", r.Latencies.TimeToFirstToken), latency("ITL", r.Latencies.InterTokenLatency), latency("queue", r.Latencies.QueueTime), latency("backlog", r.BacklogSeconds))
	for _, bw := range r.Bandwidth {
		row(w, "bandwidth", share(bw.Ratio, "saturated, by "+bw.Source))
	}
}

// rankOf orders constraints for reading: the binding one first, then as listed.
func rankOf(r *sidecar.Replica, c capacity.Constraint) int {
	if c == r.Binding {
		return -1
	}
	return int(c)
}

// row writes a titled line of the parts that are known, and no line when none is.
func row(w io.Writer, title string, parts ...string) {
	known := slices.DeleteFunc(parts, func(p string) bool { return p == "" })
	if len(known) > 0 {
		fmt.Fprintf(w, "  %-14s  %s\n", title, strings.Join(known, "   "))
	}
}

func measure(v float64, unit string) string {
	if math.IsNaN(v) {
		return ""
	}
	return quantity(v) + " " + unit
}

func count(v float64, unit string) string {
	if math.IsNaN(v) {
		return ""
	}
	return grouped(v) + " " + unit
}

func share(v float64, of string) string {
	if math.IsNaN(v) {
		return ""
	}
	return percent(v) + " " + of
}

func latency(name string, secs float64) string {
	if math.IsNaN(secs) {
		return ""
	}
	return name + " " + duration(secs)
}

func occupancy(o sidecar.Occupancy, kind string) string {
	if math.IsNaN(o.Used) || math.IsNaN(o.Total) {
		return share(o.Ratio, kind)
	}
	return fmt.Sprintf("%s %s of %s (%s, from %s)", kind, grouped(o.Used), grouped(o.Total), percent(o.Ratio), o.Source)
}

// bar draws a load ratio with a mark where the replica is full.
func bar(ratio float64) string {
	full := int(math.Round(barCells / 1.2))
	filled := int(math.Round(min(max(ratio, 0), 1.2) * barCells / 1.2))
	cells := []byte(strings.Repeat("#", filled) + strings.Repeat(".", barCells-filled))
	cells[full] = '|'
	return string(cells)
}
