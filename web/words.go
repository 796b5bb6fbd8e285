package web

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"headroom_exporter/capacity"
	"headroom_exporter/collector/engine"
	"headroom_exporter/sidecar"
)

// stateWords say what an engine state means to the reader, and what to do.
// Advice is empty where nothing needs to be done.
type stateWords struct {
	summary, advice string
}

// describeState puts an engine's state into words; age is the seconds since
// the newest good reading, NaN before the first.
func describeState(e *sidecar.EngineStatus, age float64) stateWords {
	since := "no good reading yet"
	if !math.IsNaN(age) {
		since = "last good reading " + duration(age) + " ago"
	}
	switch e.State {
	case engine.StateOK:
		return stateWords{"The engine is serving; its readings are fresh.", ""}
	case engine.StateIdle:
		return stateWords{"The engine is idle: nothing runs, nothing waits.", ""}
	case engine.StateStale:
		return stateWords{"The engine answers, but its readings cannot be trusted; " + since + ".", staleAdvice(e)}
	case engine.StateDisabled:
		return stateWords{"The page that was read holds no metrics of an engine.",
			"Check that the URL is the engine's own and not a router's, and that the engine runs with its metrics on (vLLM: without --disable-log-stats; SGLang: with --enable-metrics)."}
	case engine.StateAsleep:
		return stateWords{"The engine is asleep: its memory was given back, and it takes no requests.",
			"Wake it (vLLM: POST /wake_up) when it should serve."}
	case engine.StateLoading:
		return stateWords{"The engine is loading: it answers, but is not ready yet.",
			"Wait. Weights are loaded and graphs captured, which takes minutes for a large model."}
	case engine.StateDown:
		return stateWords{"The engine does not answer; " + since + ".",
			"Check that the engine runs and listens at " + e.URL + "; --engine.url sets where it is looked for."}
	default:
		return stateWords{"The engine has not been asked yet.", ""}
	}
}

// staleAdvice says what to do about readings that cannot be trusted. An
// error says that itself.
func staleAdvice(e *sidecar.EngineStatus) string {
	switch {
	case e.Error != "":
		return ""
	case e.Reason == "gauges_frozen":
		return "It says that requests run or wait, but none of its counters has moved for 15 s: look at its log, its engine core may hang."
	case e.Reason == "metrics_incomplete":
		return "Its page has no usable number of running requests: look at the page itself, and at options that limit its metrics."
	default:
		return "Look at the engine's log: its engine core may hang."
	}
}

// missingSignals lists the signals that the engine's page does not carry, sorted.
func missingSignals(e *sidecar.EngineStatus) []string {
	missing := []string{}
	for signal, available := range e.Available {
		if !available {
			missing = append(missing, signal)
		}
	}
	slices.Sort(missing)
	return missing
}

// bindingWords says of each constraint that it binds.
var bindingWords = [capacity.NumConstraints]string{
	capacity.Curve:         "the capacity curve binds",
	capacity.SequenceSlots: "sequence slots bind",
	capacity.TokenSlots:    "token slots bind",
	capacity.TokenBudget:   "the token budget of a step binds",
	capacity.Queue:         "the queue binds",
	capacity.LoRA:          "LoRA adapters bind",
}

// summarize says in one line what a replica can still take. The status page
// splits it at its dots, and sets its leading percentage large.
func summarize(r *sidecar.Replica) string {
	if !r.State.Known() {
		return "Headroom is not known"
	}
	var parts []string
	switch h := r.HeadroomRatio; {
	case math.IsNaN(h):
		return "Headroom is not known"
	case percent(-h) != percent(0) && h < 0:
		parts = append(parts, percent(-h)+" over full")
	case r.Curve.Curve != nil && !r.Curve.Valid:
		// Who gave a curve must not take the engine's limits for it.
		parts = append(parts, percent(math.Abs(h))+" headroom by the engine's limits alone, the capacity curve is not used")
	default:
		parts = append(parts, percent(math.Abs(h))+" headroom")
	}
	switch left := r.Left.RequestsPerSecond; {
	case math.IsNaN(left) || math.IsInf(left, 0):
	case left < 0:
		parts = append(parts, quantity(-left)+" requests/s of this mix too many")
	case r.Curve.Valid:
		parts = append(parts, quantity(left)+" more requests/s of this mix")
	default:
		// Slots fill faster than load grows, because a fuller batch is a slower one.
		parts = append(parts, "at most "+quantity(left)+" more requests/s of this mix")
	}
	if r.Binding >= 0 && r.Binding < capacity.NumConstraints {
		parts = append(parts, bindingWords[r.Binding])
	}
	return strings.Join(parts, " · ")
}

func percent(ratio float64) string {
	return strconv.FormatFloat(ratio*100, 'f', 0, 64) + " %"
}

// quantity writes a number as people read it: one decimal below 100, none
// above, thousands grouped.
func quantity(v float64) string {
	if math.IsNaN(v) {
		return "unknown"
	}
	if a := math.Abs(v); a < 99.95 {
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return grouped(v)
}

// grouped writes a whole number with its thousands grouped.
func grouped(v float64) string {
	if math.IsNaN(v) {
		return "unknown"
	}
	if math.IsInf(v, 0) {
		return "unbounded"
	}
	digits := strconv.FormatFloat(math.Abs(v), 'f', 0, 64)
	var b strings.Builder
	if v < 0 && digits != "0" {
		b.WriteByte('-')
	}
	for i, d := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(d)
	}
	return b.String()
}

// duration writes seconds as people read them.
func duration(secs float64) string {
	switch {
	case math.IsNaN(secs):
		return "unknown"
	case secs < 1e-3 && secs > 0:
		return fmt.Sprintf("%.0f µs", secs*1e6)
	case secs < 1:
		return fmt.Sprintf("%.0f ms", secs*1e3)
	case secs < 100:
		return fmt.Sprintf("%.1f s", secs)
	case secs > 1e9:
		return "unbounded"
	default:
		return time.Duration(secs * float64(time.Second)).Round(time.Second).String()
	}
}
