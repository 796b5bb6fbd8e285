package web

import (
	"fmt"
	"html/template"
	"math"
	"strconv"
	"strings"

	"headroom_exporter/capacity"
	"headroom_exporter/plot"
)

// The widths of the picture in pixels of the page.
const (
	leastPictureWidth, mostPictureWidth = 260, 1200
	// narrowPicture is too narrow for a tick every tenth.
	narrowPicture = 520
)

// The axis of load ratios ends at least at leastLoad, and at most at mostLoad:
// what is beyond it is drawn at its end.
const leastLoad, mostLoad = 1.25, 2.0

// colours is how many the page has for classes.
const colours = 8

func colour(place int) string { return "c" + strconv.Itoa(place%colours) }

// latencyNames are the latencies of a picture in words.
var latencyNames = map[string]string{"ttft": "time to first token", "itl": "time between tokens"}

// picture draws the view: the zones, the knee with its interval, what was
// measured of each class, and the live operating point with its trail. Its
// width is that of its place, so that its words keep their size.
func (v *curveView) picture(width int) template.HTML {
	w := float64(min(max(width, leastPictureWidth), mostPictureWidth))
	least, most := v.latencies()
	frame := plot.Frame{Width: w, Height: 420, Left: 74, Right: 12, Top: 60, Bottom: 38}
	if w < narrowPicture {
		frame.Height = 320
	}
	if most == 0 {
		// Without any latency the zones are a strip.
		frame.Height, frame.Left = 170, 12
	}
	d := plot.New(frame, v.alternative())
	x := plot.Axis{From: 0, To: v.mostLoad(), Start: d.Left, End: d.Right}
	y := plot.Axis{From: least / 1.5, To: most * 1.5, Start: d.Bottom, End: d.Top, Log: true}
	v.zones(d, x)
	if most > 0 {
		d.YAxis(plot.LogTicks(y.From, y.To), y, duration, "mean "+latencyNames[v.Latency]+", log scale")
	}
	v.landmarks(d, x)
	for i := range v.Classes {
		v.Classes[i].draw(d, x, y)
	}
	v.drawTrail(d, x, y)
	v.drawNow(d, x, y)
	step := 0.1
	if w < narrowPicture {
		step = 0.25
	}
	var ticks []float64
	for i := 0; float64(i)*step <= x.To+1e-9; i++ {
		ticks = append(ticks, float64(i)*step)
	}
	d.XAxis(ticks, x, shortRatio, "load ratio by the curve: 1 is at the knee of this mix")
	return d.HTML()
}

// shortRatio writes a tick without zeros at its end.
func shortRatio(v float64) string {
	return strconv.FormatFloat(math.Round(100*v)/100, 'f', -1, 64)
}

// latencies are the least and the most that are drawn; 0 when there is none.
func (v *curveView) latencies() (least, most float64) {
	least = math.Inf(1)
	see := func(load, latency number) {
		if known(load) && known(latency) {
			least, most = min(least, float64(latency)), max(most, float64(latency))
		}
	}
	end := number(v.mostLoad())
	for i := range v.Classes {
		for _, p := range v.Classes[i].Points {
			if p.LoadRatio <= end {
				see(p.LoadRatio, p.LatencySeconds)
			}
		}
	}
	for _, p := range v.Trail {
		see(p.LoadRatio, p.LatencySeconds)
	}
	see(v.Now.LoadRatio, v.Now.LatencySeconds)
	return least, most
}

// mostLoad is where the axis ends: a round value that holds the live point and its trail.
func (v *curveView) mostLoad() float64 {
	most := leastLoad
	for _, p := range append([]operatingPoint{v.Now}, v.Trail...) {
		if known(p.LoadRatio) {
			most = max(most, math.Ceil(4*float64(p.LoadRatio)*1.02)/4)
		}
	}
	return min(most, mostLoad)
}

// zones are the bands up to the watermark, up to the knee, and above it.
func (v *curveView) zones(d *plot.Drawing, x plot.Axis) {
	from := 0.0
	for _, z := range []struct {
		name capacity.Zone
		to   float64
	}{{capacity.ZoneStable, float64(v.WatermarkRatio)}, {capacity.ZoneRisk, 1}, {capacity.ZoneUnstable, x.To}} {
		if !(z.to > from) {
			continue
		}
		if z.name == capacity.ZoneRisk && !known(v.WatermarkRatio) {
			// Where the stable zone ends is not known, so none is drawn below the knee.
			from = z.to
			continue
		}
		left, width := x.At(from), x.At(z.to)-x.At(from)
		d.Rect(left, d.Top, width, d.Bottom-d.Top, "band "+string(z.name), "")
		if width > 7.5*float64(len(z.name)) {
			d.Text(left+width/2, d.Bottom-8, "middle", "zonename "+string(z.name), string(z.name))
		}
		from = z.to
	}
}

// landmarks are the upright lines at the watermark and at the knee, with their
// rates of the present mix, and the interval of the knee.
func (v *curveView) landmarks(d *plot.Drawing, x plot.Axis) {
	if known(v.KneeLowRatio) && known(v.KneeHighRatio) {
		from, to := x.At(float64(v.KneeLowRatio)), x.At(float64(v.KneeHighRatio))
		d.Rect(from, d.Top, max(to-from, 1), d.Bottom-d.Top, "interval", "")
	}
	knee := "knee"
	if known(v.KneeRate) {
		if v.AtLeast {
			knee += " at least"
		}
		knee += " " + quantity(float64(v.KneeRate)) + "/s"
		if known(v.KneeLowRatio) && known(v.KneeHighRatio) {
			knee += " (" + quantity(float64(v.KneeRate*v.KneeLowRatio)) + " to " + quantity(float64(v.KneeRate*v.KneeHighRatio)) + ")"
		}
	}
	v.upright(d, x, 1, 18, "knee", knee)
	if known(v.WatermarkRatio) {
		text := "watermark"
		if known(v.KneeRate) {
			text += " " + quantity(float64(v.KneeRate*v.WatermarkRatio)) + "/s"
		}
		v.upright(d, x, float64(v.WatermarkRatio), 35, "watermark", text)
	}
}

// upright is a line at a load ratio with its word above the plot.
func (v *curveView) upright(d *plot.Drawing, x plot.Axis, at, top float64, class, text string) {
	px := x.At(at)
	anchor, tx := "end", px-5
	if px-d.Left < 7*float64(len(text)) {
		anchor, tx = "start", px+5
	}
	d.Text(tx, top, anchor, "landmark "+class+"name", text)
	d.Line(px, top-11, px, d.Bottom, "upright "+class)
}

// draw draws what was measured of a class, joined where it kept the SLO.
func (c *classView) draw(d *plot.Drawing, x, y plot.Axis) {
	var line []plot.Point
	for _, p := range c.Points {
		if float64(p.LoadRatio) > x.To {
			continue
		}
		at := plot.Pt(x.At(float64(p.LoadRatio)), y.At(float64(p.LatencySeconds)))
		tip := fmt.Sprintf("%s measured alone at %s requests/s: %s", c.Name, quantity(float64(p.OfferedRate)), duration(float64(p.LatencySeconds)))
		if p.Passed != nil && !*p.Passed {
			d.Mark(at, plot.Cross, "measured "+colour(c.place), tip+", beyond the SLO")
		} else {
			// Above the knee a latency depends on how long the point lasted: no line goes there.
			line = append(line, at)
			d.Circle(at, 3, "measured dot "+colour(c.place), tip)
		}
	}
	d.Path(line, "measured line "+colour(c.place))
}

// trailAges are the parts of the trail, the oldest first, by which it fades.
const trailAges = 3

// drawTrail joins the steps of the trail, and the live point to the last of them.
func (v *curveView) drawTrail(d *plot.Drawing, x, y plot.Axis) {
	points := append(v.Trail[:len(v.Trail):len(v.Trail)], v.Now)
	var lines [trailAges][]plot.Point
	for i, p := range points {
		at := plot.Pt(x.At(float64(p.LoadRatio)), y.At(float64(p.LatencySeconds)))
		age := float64(v.Now.UnixMilliseconds-p.UnixMilliseconds) / float64(trailLength.Milliseconds())
		n := min(max(trailAges-1-int(age*trailAges), 0), trailAges-1)
		if i > 0 && len(lines[n]) == 0 && n > 0 {
			// The parts meet.
			if before := lines[n-1]; len(before) > 0 {
				lines[n] = append(lines[n], before[len(before)-1])
			}
		}
		lines[n] = append(lines[n], at)
	}
	for n, line := range lines {
		d.Path(line, "trail age"+strconv.Itoa(trailAges-1-n))
	}
}

// drawNow marks the live operating point. Its load is a line, which needs no latency.
func (v *curveView) drawNow(d *plot.Drawing, x, y plot.Axis) {
	if !known(v.Now.LoadRatio) {
		return
	}
	text := "now"
	if known(v.Now.OfferedRate) {
		text += " " + quantity(float64(v.Now.OfferedRate)) + "/s"
	}
	load := float64(v.Now.LoadRatio)
	if load > x.To {
		text += fmt.Sprintf(", load ratio %.2f", load)
	}
	v.upright(d, x, load, 52, "now", text)
	tip := fmt.Sprintf("now: load ratio %.2f, %s", load, duration(float64(v.Now.LatencySeconds)))
	d.Circle(plot.Pt(x.At(load), y.At(float64(v.Now.LatencySeconds))), 6, "live", tip)
}

// alternative is the picture for those who do not see it.
func (v *curveView) alternative() string {
	parts := []string{"The capacity curve: mean " + latencyNames[v.Latency] + " over the load ratio."}
	if known(v.WatermarkRatio) {
		parts = append(parts, fmt.Sprintf("Stable up to %.2f, at risk up to the knee at 1, unstable above.", v.WatermarkRatio))
	}
	if known(v.KneeRate) {
		at := "at"
		if v.AtLeast {
			at = "not known, at least"
		}
		parts = append(parts, "The knee of the present mix is "+at+" "+quantity(float64(v.KneeRate))+" requests per second.")
	}
	if !known(v.Now.LoadRatio) {
		return strings.Join(append(parts, "The live operating point is not known."), " ")
	}
	now := fmt.Sprintf("Now at %.2f", v.Now.LoadRatio)
	if known(v.Now.LatencySeconds) {
		now += ", " + duration(float64(v.Now.LatencySeconds))
	}
	parts = append(parts, now+".")
	if len(v.Trail) > 0 && known(v.Trail[0].LoadRatio) {
		first := v.Trail[0]
		minutes := float64(v.Now.UnixMilliseconds-first.UnixMilliseconds) / 60e3
		if minutes >= 1 {
			parts = append(parts, fmt.Sprintf("It was at %.2f %.0f minutes ago.", first.LoadRatio, minutes))
		}
	}
	return strings.Join(parts, " ")
}
