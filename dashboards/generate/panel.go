package main

import (
	"maps"
	"slices"
	"strings"

	"github.com/grafana/grafana-foundation-sdk/go/bargauge"
	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/cog/variants"
	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/text"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
	"github.com/grafana/grafana-foundation-sdk/go/units"
)

// Units that panels have; what Grafana has no word for is written behind the number.
const (
	ratio             = units.PercentUnit
	seconds           = units.Seconds
	byteCount         = units.BytesIEC
	bytesPerSecond    = units.BytesPerSecondIEC
	requestsPerSecond = units.RequestsPerSecond
	tokensPerSecond   = "si:tok/s"
	tokens            = "si:tok"
	sequencesPerS     = "suffix:seq/s"
	watts             = units.Watt
	hertz             = units.Hertz
	celsius           = units.Celsius
	joules            = units.Joule
	ago               = units.DateTimeFromNow
	number            = units.Short
	times             = "suffix:x"
)

// Colours by what they mean.
const (
	good    = "green"
	careful = "orange"
	bad     = "red"
	plain   = "blue"
)

// kind is how a panel draws.
type kind int

const (
	lines kind = iota // over time
	big               // the newest number
	bars              // the newest numbers beside each other
	words             // text
)

// panel is a question, the queries that answer it, and how the answer looks.
type panel struct {
	kind               kind
	title, description string
	unit               string
	width, height      uint32
	queries            []query
	// steps colour a number from a value on; none leaves it plain.
	steps []step
	// names shows what a series is called instead of its number.
	names bool
	// colours are those of series by how their name ends: all of it, or what
	// follows a colon.
	colours map[string]string
	// mappings are words for numbers.
	mappings map[string]string
	min, max *float64
	decimals *float64
	// stack draws series on top of each other, stairs without slopes.
	stack, stairs bool
	// empty is what is shown when there is nothing: what that means.
	empty string
	// runbooks are names of alerts whose pages say what to do.
	runbooks []string
	// text is the Markdown of a panel of words.
	text string
}

// step is a colour from a value on.
type step struct {
	from   float64
	colour string
}

// query is a PromQL expression and the name of what it gives. In it <pod> and
// <pool> stand for the matchers of what is chosen. {{gpu}} in the name is the
// beginning of the label uuid, by which a person tells GPUs apart.
type query struct {
	expr, legend string
	// bound is the colour of a dashed line: a value that the others are held against.
	bound string
}

var matchers = strings.NewReplacer(
	"<pod>", `namespace=~"$namespace", pool=~"$pool", pod=~"$pod"`,
	"<pool>", `namespace=~"$namespace", pool=~"$pool"`,
)

func (q query) build(ref string, k kind) cog.Builder[variants.Dataquery] {
	expr := matchers.Replace(q.expr)
	if strings.Contains(q.legend, "{{gpu}}") {
		expr = `label_replace(` + expr + `, "gpu", "$1", "uuid", "(.{12}).*")`
	}
	b := prometheus.NewDataqueryBuilder().
		RefId(ref).Datasource(datasource).
		Expr(expr).
		LegendFormat(q.legend).
		EditorMode(prometheus.QueryEditorModeCode)
	if k == lines {
		return b.Range()
	}
	// A number that is gone has to go from the panel too: only what is there now counts.
	return b.Instant()
}

func at(v float64) *float64 { return &v }

func (p panel) build(id uint32, pages pages) cog.Builder[dashboard.Panel] {
	switch p.kind {
	case big:
		return p.stat(id, pages)
	case bars:
		return p.barGauge(id, pages)
	case words:
		return p.words(id)
	default:
		return p.timeSeries(id, pages)
	}
}

func (p panel) targets() []cog.Builder[variants.Dataquery] {
	var all []cog.Builder[variants.Dataquery]
	for i, q := range p.queries {
		all = append(all, q.build(string(rune('A'+i)), p.kind))
	}
	return all
}

func (p panel) thresholds() cog.Builder[dashboard.ThresholdsConfig] {
	list := []dashboard.Threshold{{Color: plain}}
	if len(p.steps) > 0 {
		list = nil
	}
	for i, s := range p.steps {
		t := dashboard.Threshold{Color: s.colour, Value: cog.ToPtr(s.from)}
		if i == 0 {
			t.Value = nil // from minus infinity
		}
		list = append(list, t)
	}
	return dashboard.NewThresholdsConfigBuilder().Mode(dashboard.ThresholdsModeAbsolute).Steps(list)
}

func (p panel) valueMappings() []dashboard.ValueMapping {
	if len(p.mappings) == 0 {
		return nil
	}
	options := map[string]dashboard.ValueMappingResult{}
	for value, text := range p.mappings {
		options[value] = dashboard.ValueMappingResult{Text: cog.ToPtr(text)}
	}
	return []dashboard.ValueMapping{{ValueMap: &dashboard.ValueMap{Type: "value", Options: options}}}
}

// overrides are the looks of single series.
func (p panel) overrides() []cog.Builder[dashboard.DashboardFieldConfigSourceOverrides] {
	var all []cog.Builder[dashboard.DashboardFieldConfigSourceOverrides]
	add := func(matcher, name string, properties ...dashboard.DynamicConfigValue) {
		all = append(all, dashboard.NewDashboardFieldConfigSourceOverridesBuilder().
			Matcher(dashboard.MatcherConfig{Id: matcher, Options: name}).Properties(properties))
	}
	fixed := func(colour string) dashboard.DynamicConfigValue {
		return dashboard.DynamicConfigValue{Id: "color", Value: map[string]any{"mode": "fixed", "fixedColor": colour}}
	}
	for _, q := range p.queries {
		if q.bound == "" {
			continue
		}
		add("byName", q.legend, fixed(q.bound),
			dashboard.DynamicConfigValue{Id: "custom.lineStyle", Value: map[string]any{"fill": "dash", "dash": []int{10, 10}}},
			dashboard.DynamicConfigValue{Id: "custom.fillOpacity", Value: 0},
			dashboard.DynamicConfigValue{Id: "custom.stacking", Value: map[string]any{"mode": "none", "group": "A"}})
	}
	for _, name := range slices.Sorted(maps.Keys(p.colours)) {
		add("byRegexp", "/(^|: )"+name+"$/", fixed(p.colours[name]))
	}
	return all
}

// links lead to the runbooks of the alerts that this panel explains.
func (p panel) links(pages pages) []cog.Builder[dashboard.DashboardLink] {
	var all []cog.Builder[dashboard.DashboardLink]
	for _, name := range p.runbooks {
		all = append(all, dashboard.NewDashboardLinkBuilder("Runbook: "+name).
			Type(dashboard.DashboardLinkTypeLink).Url(pages.url(name)).TargetBlank(true))
	}
	return all
}

func (p panel) timeSeries(id uint32, pages pages) cog.Builder[dashboard.Panel] {
	b := timeseries.NewPanelBuilder().
		Id(id).Title(p.title).Description(p.description).
		Datasource(datasource).Targets(p.targets()).Links(p.links(pages)).
		Span(p.width).Height(p.height).
		Unit(p.unit).NoValue(p.empty).Thresholds(p.thresholds()).Mappings(p.valueMappings()).
		Overrides(p.overrides()).
		ColorScheme(dashboard.NewFieldColorBuilder().Mode(dashboard.FieldColorModeIdPaletteClassic)).
		DrawStyle(common.GraphDrawStyleLine).LineWidth(1).FillOpacity(0).
		ShowPoints(common.VisibilityModeNever).SpanNulls(common.BoolOrFloat64{Bool: cog.ToPtr(false)}).
		Legend(common.NewVizLegendOptionsBuilder().ShowLegend(true).
			DisplayMode(common.LegendDisplayModeList).Placement(common.LegendPlacementBottom).Calcs([]string{})).
		Tooltip(common.NewVizTooltipOptionsBuilder().
			Mode(common.TooltipDisplayModeMulti).Sort(common.SortOrderDescending))
	if p.stack {
		b.FillOpacity(40).Stacking(common.NewStackingConfigBuilder().Mode(common.StackingModeNormal).Group("A"))
	}
	if p.stairs {
		b.LineInterpolation(common.LineInterpolationStepAfter)
	}
	if p.min != nil {
		b.Min(*p.min)
	}
	switch {
	case p.max != nil:
		b.Max(*p.max)
	case p.unit != seconds:
		// Where all is 0 the axis would end at 100, and noise would look like a mountain.
		b.AxisSoftMax(1)
	}
	if p.decimals != nil {
		b.Decimals(*p.decimals)
	}
	return b
}

// words is text that asks nothing.
func (p panel) words(id uint32) cog.Builder[dashboard.Panel] {
	return text.NewPanelBuilder().
		Id(id).Title(p.title).Description(p.description).
		Span(p.width).Height(p.height).
		Mode(text.TextModeMarkdown).Content(p.text)
}

// lastValue reduces a series to its newest value.
func lastValue() *common.ReduceDataOptionsBuilder {
	return common.NewReduceDataOptionsBuilder().Calcs([]string{"lastNotNull"}).Values(false)
}

func (p panel) stat(id uint32, pages pages) cog.Builder[dashboard.Panel] {
	b := stat.NewPanelBuilder().
		Id(id).Title(p.title).Description(p.description).
		Datasource(datasource).Targets(p.targets()).Links(p.links(pages)).
		Span(p.width).Height(p.height).
		Unit(p.unit).NoValue(p.empty).Thresholds(p.thresholds()).Mappings(p.valueMappings()).
		Overrides(p.overrides()).
		ColorScheme(dashboard.NewFieldColorBuilder().Mode(dashboard.FieldColorModeIdThresholds)).
		ColorMode(common.BigValueColorModeValue).GraphMode(common.BigValueGraphModeNone).
		JustifyMode(common.BigValueJustifyModeAuto).TextMode(common.BigValueTextModeValueAndName).
		Orientation(common.VizOrientationAuto).
		ReduceOptions(lastValue())
	if p.names {
		// Words are wide: below each other they are larger than side by side.
		b.TextMode(common.BigValueTextModeName).Orientation(common.VizOrientationHorizontal)
	}
	if p.decimals != nil {
		b.Decimals(*p.decimals)
	}
	return b
}

func (p panel) barGauge(id uint32, pages pages) cog.Builder[dashboard.Panel] {
	b := bargauge.NewPanelBuilder().
		Id(id).Title(p.title).Description(p.description).
		Datasource(datasource).Targets(p.targets()).Links(p.links(pages)).
		Span(p.width).Height(p.height).
		Unit(p.unit).NoValue(p.empty).Thresholds(p.thresholds()).Mappings(p.valueMappings()).
		Overrides(p.overrides()).
		ColorScheme(dashboard.NewFieldColorBuilder().Mode(dashboard.FieldColorModeIdThresholds)).
		Orientation(common.VizOrientationHorizontal).DisplayMode(common.BarGaugeDisplayModeBasic).
		ValueMode(common.BarGaugeValueModeColor).ShowUnfilled(true).
		ReduceOptions(lastValue())
	if p.min != nil {
		b.Min(*p.min)
	}
	if p.max != nil {
		b.Max(*p.max)
	}
	if p.decimals != nil {
		b.Decimals(*p.decimals)
	}
	return b
}
