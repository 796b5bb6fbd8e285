package engine

import (
	"math"
	"slices"
	"strings"

	"github.com/prometheus/prometheus/model/labels"
)

// kind is how the value of a row is checked and corrected.
type kind uint8

const (
	// gauge is any number from 0 on.
	gauge kind = iota
	// ratio is a share 0..1; anything else is rejected and counted.
	ratio
	// optionalRatio is a ratio whose -1 means that the engine does not measure it.
	optionalRatio
	// counter is cumulative and corrected for resets.
	counter
	// estimate is a counter that stands at 0 while the engine does not make the estimate.
	estimate
	// info is a property of the engine that may stand on series without model or rank label.
	info
)

// match requires a label to have one of some values.
type match struct {
	label  string
	values []string
}

// alias is one way in which an engine exports a signal.
type alias struct {
	// name of the sample without the table's prefix; for a histogram without its suffix.
	name string
	// match must hold for every entry.
	match []match
	// label takes the value from this label instead of the sample.
	label string
	// list counts the label's comma-separated entries instead of reading it as a number.
	list bool
	// newest takes the series with the largest value, a time, and its label.
	newest bool
	// timesLabel multiplies it by another label of the same sample.
	timesLabel string
	// times multiplies by another number of the same rank, which must be there.
	times operand
	// over divides by another number of the same rank, which must be there and above zero.
	over operand
	// plus adds another number of the same rank if it is there.
	plus operand
	// minus subtracts another number of the same rank, which must be there.
	minus operand
	// factor converts to our unit; 0 is 1.
	factor float64
	// source of a limit read this way; empty means metric.
	source string
	// follows tells that the series alone make no rank: others than the engine's carry them too.
	follows bool
}

// operand is what an alias is combined with; no name is none.
type operand struct {
	name  string
	match []match
}

// row binds a signal to its aliases; the first present wins, aliases are never added up.
type row struct {
	signal  Signal
	kind    kind
	aliases []alias
}

type histogramRow struct {
	signal  HistogramSignal
	aliases []alias
}

// table says how one type of engine exports the signals. A further engine is
// one more table in tables.
type table struct {
	engine Type
	// prefixes of its family names; a family's name is one prefix and an alias's name.
	prefixes []string
	// signs are the prefixes by which a page is known to be of this engine; empty takes prefixes.
	signs []string
	// bareLabel, where it is set, is the label by which a name of this table is known without a prefix.
	bareLabel string
	// metricsPath of the page below the base URL.
	metricsPath string
	// queuePath is where the engine serves a queue that empties when it is read: never ask there.
	queuePath  string
	rows       []row
	histograms []histogramRow
	modelLabel string
	rankLabel  string
	// noModel is what the model label says when the engine was not told a name.
	noModel string
	// replicaLabels tell replicas apart whose series stand on one page; the first present counts.
	replicaLabels []string
	// duplicateLabels tell apart series that repeat the same number: the largest
	// of them counts. Over every other label values are summed.
	duplicateLabels []string
	// totalLabels have an empty value on the series that is the total over the label;
	// series with a value there are parts of it and left out.
	totalLabels []string
	// routerLabel without a model label marks a request router's page.
	routerLabel string
	// processStart tells that process_start_time_seconds is that of the process that counts.
	processStart bool
	// silentUntilFirstStep tells that gauges may be missing until a rank's first step, as
	// vLLM's are behind several API servers: a rank that never stepped has nothing in it.
	silentUntilFirstStep bool
	// defaultPort of the engine's server.
	defaultPort string
	// healthIsLoad tells that the health check fails under load too, and is no sign of death.
	healthIsLoad bool
	// infoPath is where the engine tells its limits, and serverInfo reads them from the body.
	infoPath   string
	serverInfo func(body []byte) (settings, error)
	// settingsName is the info metric, without a prefix, whose labels say how the engine was
	// started, and settings reads them.
	settingsName string
	settings     func(set labels.Labels) Settings
	// commandLine reads limits from the arguments of the engine's process; false when it is another program.
	commandLine func(argv []string) (settings, bool)
	// defaults are the engine's documented limits when nobody sets them, given the most sequences ever
	// seen running, and the memory in bytes and model of its GPU, NaN and empty when not known.
	defaults func(running, gpuMemory float64, gpuModel string) settings
}

// cut takes the prefix off a name; without one of the table's the name stays and ok is false.
func (t *table) cut(name string) (key string, ok bool) {
	for _, prefix := range t.prefixes {
		if key, ok := strings.CutPrefix(name, prefix); ok {
			return key, true
		}
	}
	return name, false
}

// signatures are the prefixes that make a page one of this engine.
func (t *table) signatures() []string {
	if len(t.signs) > 0 {
		return t.signs
	}
	return t.prefixes
}

func (t *table) signedBy(name string) bool {
	return slices.ContainsFunc(t.signatures(), func(sign string) bool { return strings.HasPrefix(name, sign) })
}

func (a alias) unit() float64 {
	if a.factor == 0 {
		return 1
	}
	return a.factor
}

// cumulative tells that values of the kind are corrected for resets.
func (k kind) cumulative() bool { return k == counter || k == estimate }

// check returns a value that is possible for the kind, else NaN; rejected
// tells that the page's value cannot be.
func (k kind) check(v float64) (value float64, rejected bool) {
	if k == optionalRatio && v == -1 || k == estimate && v == 0 {
		return math.NaN(), false
	}
	if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
		return math.NaN(), true
	}
	if (k == ratio || k == optionalRatio) && v > 1 {
		return math.NaN(), true
	}
	return v, false
}
