package e2e

import (
	"fmt"
	"testing"

	"github.com/chromedp/chromedp"
)

// Words at the scale of a load ratio never lie on each other, however long the
// scale is: the watermark's goes where there is no room for it.
func TestPageScaleWords(t *testing.T) {
	t.Parallel()
	engine := simulate(t, constantLoad...)
	s := serve(t, engine.url)
	s.waitFor(startLimit, "headroom", knowsHeadroom)
	p := openPage(t, s.url+"/")
	p.shows("stable")
	for most, want := range map[float64]string{1.1: "2 3 0", 2.9: "1 3 0", 70: "1 2 0"} {
		// How many words are to be seen at the chart and below the bars, and how many pairs overlap.
		got := run(p, chromedp.Evaluate[string](fmt.Sprintf(`((most) => {
			charts[0]({ unix_milliseconds: [Date.now()], load_ratio: [most], load_ratios: { sequence_slots: [most], token_slots: [0], curve: [0] } }, Date.now(), 0.8);
			view.scale = 1.25;
			drawBars({ load_ratio: { queue: most }, binding_constraint: "queue" }, 0.8);
			const seen = (selector) => [...document.querySelectorAll(selector)].filter((e) => !e.hidden && e.style.visibility !== "hidden");
			let overlaps = 0;
			const groups = ["#chart-load .edge", "#axis span"].map(seen);
			for (const words of groups) words.forEach((a, i) => words.slice(i + 1).forEach((b) => {
				const x = a.getBoundingClientRect(), y = b.getBoundingClientRect();
				if (x.left < y.right && y.left < x.right && x.top < y.bottom && y.top < x.bottom) overlaps++;
			}));
			return [...groups.map((words) => words.length), overlaps].join(" ");
		})(%g)`, most)))
		if got != want {
			t.Errorf("up to %g: words at the chart, below the bars, and overlaps are %q, want %q", most, got, want)
		}
	}
	p.isClean(s.url)
}
