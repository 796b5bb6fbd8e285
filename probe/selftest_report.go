package probe

import (
	"fmt"
	"io"
)

// WriteText writes the report for a terminal.
func (r *SelfTestReport) WriteText(w io.Writer) error {
	perCore := func(v float64) string { return fmt.Sprintf("%.0f", v) }
	t := table{
		{"", "reached", "per core", "CPU each"},
		{"short requests/s (512 tokens in, 1 out)", perCore(r.ShortRate), perCore(r.ShortPerCore), seconds(r.ShortCPU)},
		{"coalesced events/s (32 a write)", perCore(r.CoalescedRate), perCore(r.CoalescedPerCPU), seconds(r.CoalescedCPU)},
		{fmt.Sprintf("paced events/s (one a read, %d streams)", r.PacedStreams), perCore(r.PacedRate), perCore(r.PacedPerCore), seconds(r.PacedCPU)},
	}
	fmt.Fprintf(w, "CPUs that the client may use: %d, first answer after %s, memory %.0f MB with %d streams, %.1f allocations and %.0f bytes an event\n\n",
		r.CPUs, seconds(r.FirstRequest), r.MaxRSS/1e6, r.RSSStreams, r.AllocationsPerEvent, r.BytesPerEvent)
	if err := t.writeText(w); err != nil {
		return err
	}
	t = table{{"open loop", "events/s", "CPU", "lag p50, p99", "bias of TTFT", "TTFT sent", "ITL", "TPOT", "E2E", "server late p99"}}
	both := func(p50, p99 float64) string { return seconds(p50) + ", " + seconds(p99) }
	for _, a := range []struct {
		name string
		Accuracy
	}{{"light", r.Light}, {"steady", r.Steady}, {"half of the paced peak", r.Half}} {
		row := []string{a.name, perCore(a.EventRate), fmt.Sprintf("%.0f %%", 100*a.CPUShare), both(a.LagP50, a.LagP99)}
		for _, b := range []Bias{a.TTFT, a.TTFTSent, a.ITL, a.TPOT, a.E2E} {
			row = append(row, both(b.P50, b.P99))
		}
		t = append(t, append(row, seconds(a.ServerLateP99)))
	}
	fmt.Fprintln(w)
	if err := t.writeText(w); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w, "\nA bias is the client's quantile (p50, p99) less the server's own; TTFT and E2E hold the lag. \"Per core\" is 1 / CPU time: what one core does when nothing else uses it.")
	return err
}
