package engine

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"math"
	"strings"
	"sync"
	"time"
)

// Poller reads one engine, one request at a time. It is used by one loop, once an interval.
type Poller struct {
	config  Config
	log     *slog.Logger
	tables  []*table
	client  *client
	locator locator

	mu         sync.Mutex
	normaliser *normaliser
	machine    machine
	discovery  discovery
	// table of the engine, nil until it is known.
	table *table
	last  Observation
	stats Stats
	// described is what the newest good page says of how the engine was started.
	described Settings
	// carried is what last.Available says by name.
	carried signalSet
	// timeouts in a row; skipped tells that the last poll sent nothing because of them.
	timeouts int
	skipped  bool
}

// New makes a poller; it sends nothing yet.
func New(c Config, log *slog.Logger) (*Poller, error) {
	return newPoller(c, log, tables)
}

func newPoller(c Config, log *slog.Logger, tables []*table) (*Poller, error) {
	if err := c.validate(tables); err != nil {
		return nil, err
	}
	c = c.withDefaults()
	p := &Poller{config: c, log: log, tables: tables, discovery: newDiscovery()}
	metricsPath := "/metrics"
	if c.Type != TypeUnknown {
		p.table = tableOf(tables, c.Type)
		metricsPath = p.table.metricsPath
		p.tables = []*table{p.table}
	}
	client, err := newClient(c, metricsPath)
	if err != nil {
		return nil, err
	}
	p.client = client
	if c.Type != TypeUnknown || c.pagePath() != "" {
		p.locator = newLocator(nil, client.base, client.page)
	} else {
		p.locator = newLocator(p.tables, client.base, client.page)
	}
	p.normaliser = newNormaliser(p.tables, c.ReplicaID)
	return p, nil
}

// Close gives idle connections back.
func (p *Poller) Close() { p.client.close() }

// backOffAfter timeouts in a row, only every second poll asks: a page that
// the engine is still writing must not be asked for again and again.
const backOffAfter = 3

// Poll reads the engine once. It ends before the interval does.
func (p *Poller) Poll(ctx context.Context) Observation {
	p.mu.Lock()
	defer p.mu.Unlock()
	begin := time.Now()
	p.stats.Polls++
	// A quarter of what the page's timeout leaves of the interval is the caller's.
	ctx, cancel := context.WithDeadline(ctx, begin.Add(p.config.Timeout+(p.config.Interval-p.config.Timeout)*3/4))
	defer cancel()

	if p.timeouts > backOffAfter && !p.skipped {
		p.skipped = true
		return p.repeat(p.last.Err)
	}
	p.skipped = false

	f := p.read(ctx, begin)
	if f == nil {
		p.timeouts = 0
		p.complete(ctx)
		return p.observed()
	}
	return p.failed(ctx, f)
}

// read asks for the page, wherever it may be, and takes it.
func (p *Poller) read(ctx context.Context, begin time.Time) *Failure {
	ctx, cancel := context.WithTimeout(ctx, p.config.Timeout)
	defer cancel()
	var f *Failure
	for _, page := range p.locator.pages(begin) {
		p.client.page = page
		body, contentType, failed := p.client.metrics(ctx)
		arrived := time.Now()
		p.last.Duration = arrived.Sub(begin)
		if f = failed; f == nil {
			f = p.take(body, contentType, arrived)
		}
		if !p.locator.learn(page, f, arrived) {
			break
		}
	}
	if f != nil && f.Reason == "http_404" && p.locator.queue(begin) {
		return jsonFailure()
	}
	return f
}

// take reads a page into the last observation.
func (p *Poller) take(body []byte, contentType string, at time.Time) *Failure {
	n := p.normaliser
	sum, f := n.pages.read(body, contentType)
	if f != nil {
		return f
	}
	p.stats.DuplicateSamples += uint64(sum.duplicates)
	defer n.pages.trim(sum.series)
	index := p.detect(sum)
	if index < 0 {
		return p.nothing(sum)
	}
	gone := p.machine.state == StateDown || p.machine.state == StateLoading
	if gone {
		n.expectRestart()
	}
	resets := n.resets
	ranks, carried := n.ranks(index, at)
	p.described = n.pages.layouts[index].settings(n.pages.generation)
	p.stats.CounterResets, p.stats.RejectedSamples = n.resets, n.rejected
	if len(ranks) == 0 {
		if sum.router {
			return p.nothing(sum)
		}
		return failure(reasonIncomplete, "%s has %s metrics but none that tells its load; look for an option that limits its metrics",
			p.client.page, p.tables[index].engine)
	}
	if t := p.tables[index]; p.table != t {
		p.table = t
		p.discovery.again()
	}
	if n.resets > resets || gone {
		p.discovery.again()
	}
	p.last.Type = p.table.engine
	p.last.Reading = &Reading{At: at, Ranks: ranks, Series: sum.series}
	if p.last.Available == nil || carried != p.carried {
		p.carried, p.last.Available = carried, carried.names()
	}
	p.machine.read(engineState(ranks))
	return nil
}

// detect returns the index of the table whose families the page has: the
// one known already, else the first; -1 for none.
func (p *Poller) detect(sum summary) int {
	first := -1
	for i, present := range sum.families {
		if !present {
			continue
		}
		if p.tables[i] == p.table {
			return i
		}
		if first < 0 {
			first = i
		}
	}
	return first
}

// nothing says why a page that could be read has no engine on it.
func (p *Poller) nothing(sum summary) *Failure {
	f := failure("no_engine_families", "%s has %d samples but none of %s; the engine's metrics are switched off (vLLM: --disable-log-stats, SGLang: --enable-metrics) or --engine.url leads elsewhere",
		p.client.page, sum.series, p.expected())
	switch {
	case sum.router:
		f = failure("router_page", "%s is the page of a request router, not of an engine; point --engine.url at one engine", p.client.page)
	case sum.series == 0:
		f = failure("empty_page", "%s is empty; the engine's metrics are switched off or not there yet", p.client.page)
	}
	f.page = true
	return f
}

func (p *Poller) expected() string {
	var names []string
	for _, t := range p.tables {
		names = append(names, t.signatures()[0])
	}
	return strings.Join(names, ", ")
}

// complete adds what the page does not say, then the limits of every rank.
func (p *Poller) complete(ctx context.Context) {
	if p.client.local() {
		p.discovery.look(p.config.ProcPath, p.table, p.client.port())
	}
	// The reading waits for the answer, so it may not take long.
	short, cancel := context.WithTimeout(ctx, p.config.Interval/4)
	p.discovery.ask(short, p.client, p.table)
	cancel()
	d := &p.discovery
	l := limits{
		flags:      settings{maxNumSeqs: p.config.MaxNumSeqs, maxNumBatchedTokens: p.config.MaxNumBatchedTokens},
		kvTokens:   p.config.KVTokens,
		serverInfo: d.serverInfo, commandLine: d.commandLine,
		defaults: p.table.defaults, gpuMemory: math.NaN(),
	}
	if p.config.GPU != nil {
		l.gpuMemory, l.gpuModel = p.config.GPU()
	}
	ranks := p.last.Reading.Ranks
	for i := range ranks {
		l.apply(&ranks[i])
	}
	p.last.Version = cmp.Or(d.version, d.serverInfo.version)
	p.last.MaxModelLen = firstKnown(d.maxModelLen, d.serverInfo.maxModelLen, d.commandLine.maxModelLen)
	p.last.Settings = p.described.or(d.serverInfo.start).or(d.commandLine.start)
	a, b := d.serverInfo.parallelism, d.commandLine.parallelism
	p.last.Parallelism = Parallelism{
		Tensor: firstKnown(a.Tensor, b.Tensor), Pipeline: firstKnown(a.Pipeline, b.Pipeline),
		Data: firstKnown(a.Data, b.Data), DecodeContext: firstKnown(a.DecodeContext, b.DecodeContext),
	}
}

func firstKnown(values ...int) int {
	for _, v := range values {
		if v > 0 {
			return v
		}
	}
	return 0
}

// observed publishes a good poll.
func (p *Poller) observed() Observation {
	if p.last.Err != nil {
		p.log.Info("engine answers again", "url", p.client.page, "state", string(p.machine.state))
	}
	p.last.Fresh, p.last.Err = true, nil
	return p.publish()
}

// failed publishes a poll without a reading.
func (p *Poller) failed(ctx context.Context, f *Failure) Observation {
	if ctx.Err() == context.Canceled {
		// The caller's end says nothing of the engine, whatever the request made of it.
		return p.repeat(&Failure{Reason: "cancelled", Transient: true, Message: "the poll was cancelled", err: f})
	}
	failures := maps.Clone(p.stats.Failures)
	if failures == nil {
		failures = make(map[string]uint64)
	}
	failures[f.Reason]++
	p.stats.Failures = failures
	if f.Reason == "timeout" {
		p.timeouts++
	} else {
		p.timeouts = 0
	}
	switch {
	case f.page:
		p.machine.disabled(f.Reason)
	case p.machine.keeps(f):
	case f.Reason == reasonIncomplete, f.Reason == "credentials_unreadable":
		p.machine.failed(f, healthOK)
	default:
		h := p.client.health(ctx)
		if h == healthUnavailable && p.machine.ready && p.table != nil && p.table.healthIsLoad {
			h = healthOK // it answers, and that it is full is no reason to call it dead
		}
		p.machine.failed(f, h)
	}
	if !sameReason(p.last.Err, f) {
		p.log.Warn("no reading of the engine", "reason", f.Reason, "state", string(p.machine.state), "err", f)
	}
	return p.repeat(f)
}

// sameReason tells whether the last poll failed in the same way, so that it is in the log already.
func sameReason(last error, f *Failure) bool {
	var before *Failure
	return errors.As(last, &before) && before.Reason == f.Reason
}

// repeat publishes the last reading, no longer fresh.
func (p *Poller) repeat(err error) Observation {
	p.last.Fresh, p.last.Err = false, err
	return p.publish()
}

func (p *Poller) publish() Observation {
	p.last.At = time.Now()
	p.last.State, p.last.Reason = p.machine.state, p.machine.reason
	if p.last.State == "" { // cancelled before anything was known
		p.last.State, p.last.Reason = StateDown, "cancelled"
	}
	p.last.Stats = p.stats
	return p.last
}
