package engine

import "math"

// Sources of a limit.
const (
	sourceFlag       = "flag"
	sourceMetric     = "metric"
	sourceBlocks     = "blocks"
	sourceServerInfo = "server_info"
	sourceCmdline    = "cmdline"
	sourceDefault    = "default"
)

// settings are limits of an engine that were read somewhere; 0 is not known.
type settings struct {
	maxNumSeqs, maxNumBatchedTokens, maxModelLen, kvTokens int

	parallelism Parallelism
	version     string
	start       Settings
	// configFile tells that more is set in a file that cannot be seen.
	configFile bool
}

// Guessed tells that the limit is the engine's documented default, which
// nobody saw in force.
func (l Limit) Guessed() bool { return l.Source == sourceDefault }

func unknownLimit() Limit { return Limit{Value: math.NaN()} }

// limitFromMetric keeps a limit that the page itself carries.
func (r *Rank) limitFromMetric(s Signal, value float64, a *alias) {
	if !(value > 0) {
		return
	}
	limit := Limit{Value: value, Source: sourceMetric}
	if a.source != "" {
		limit.Source = a.source
	}
	switch s {
	case KVCacheTokens:
		r.TokenSlots = limit
	case SequenceSlots:
		r.SequenceSlots = limit
	case BatchedTokenLimit:
		r.BatchedTokens = limit
	}
}

// limits are what is known about an engine's limits from outside its page.
type limits struct {
	flags                   settings
	kvTokens                int
	serverInfo, commandLine settings

	defaults  func(running, gpuMemory float64, gpuModel string) settings
	gpuMemory float64
	gpuModel  string
}

// apply completes a rank's limits: flag, then metric, then /server_info, then
// the command line, then the engine's documented default.
func (l *limits) apply(r *Rank) {
	var standard settings
	// With a configuration file that nobody can read, the default is a guess.
	if l.defaults != nil && !l.commandLine.configFile {
		standard = l.defaults(r.peakRunning, l.gpuMemory, l.gpuModel)
	}
	r.SequenceSlots = choose(r.SequenceSlots, l.flags.maxNumSeqs, l.serverInfo.maxNumSeqs, l.commandLine.maxNumSeqs, standard.maxNumSeqs)
	r.BatchedTokens = choose(r.BatchedTokens, l.flags.maxNumBatchedTokens, l.serverInfo.maxNumBatchedTokens,
		l.commandLine.maxNumBatchedTokens, standard.maxNumBatchedTokens)
	if r.TokenSlots.Source == sourceBlocks {
		// Decode context parallelism spreads one block over its group.
		if n := max(l.serverInfo.parallelism.DecodeContext, l.commandLine.parallelism.DecodeContext); n > 1 {
			r.TokenSlots.Value *= float64(n)
		}
	}
	r.TokenSlots = choose(r.TokenSlots, l.kvTokens, l.serverInfo.kvTokens, 0, 0)
	if used := r.Value(KVCacheTokensUsed); math.IsNaN(used) && r.TokenSlots.Known() {
		r.values[KVCacheTokensUsed] = r.Value(KVCacheUsage) * r.TokenSlots.Value
	}
}

func choose(metric Limit, flag, serverInfo, commandLine, standard int) Limit {
	switch {
	case flag > 0:
		return Limit{float64(flag), sourceFlag}
	case metric.Known():
		return metric
	case serverInfo > 0:
		return Limit{float64(serverInfo), sourceServerInfo}
	case commandLine > 0:
		return Limit{float64(commandLine), sourceCmdline}
	case standard > 0:
		return Limit{float64(standard), sourceDefault}
	default:
		return unknownLimit()
	}
}
