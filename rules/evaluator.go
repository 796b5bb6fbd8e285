package rules

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	promrules "github.com/prometheus/prometheus/rules"
)

// maintainEvery is how often old samples are forgotten and a storage
// directory that failed is tried again.
const maintainEvery = time.Minute

// Evaluator evaluates recording rules on the samples that Append gets. It is
// a prometheus.Collector of what the rules record and of how they do. Its
// methods are safe for concurrent use.
type Evaluator struct {
	config  Config
	store   *store
	feed    *feed
	outputs *outputs
	engine  *promql.Engine
	metrics *promrules.Metrics
	rules   atomic.Pointer[ruleSet]

	// reloading is held while rule files are read and put in force.
	reloading sync.Mutex
	// manager is nil before Run.
	manager *promrules.Manager
	// groups in force, for Collect, which must not wait for a reload.
	groups atomic.Pointer[[]*promrules.Group]

	mu         sync.Mutex
	reloadedAt time.Time
	reloadErr  error
	failures   map[ruleID]uint64
	failing    map[ruleIndex]string
	panics     uint64
}

// ruleID names a rule as its failures are counted.
type ruleID struct{ file, group, rule string }

// ruleIndex names one rule, of several that may record one name.
type ruleIndex struct {
	file, group string
	index       int
}

// New checks the configuration and every rule file, and opens the store. The
// error names all that is wrong. A storage directory that cannot be used is no
// error: the rules then go on in memory, and /metrics says so.
func New(config Config) (*Evaluator, error) {
	c, err := config.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("configuring the rules: %w", err)
	}
	set, err := load(c)
	if err != nil {
		return nil, err
	}
	s, err := openStore(c)
	if err != nil {
		return nil, err
	}
	reg := prefixed(c.Registerer)
	f := newFeed(s, c.MaxSeries)
	e := &Evaluator{
		config:     c,
		store:      s,
		feed:       f,
		outputs:    newOutputs(s, f.feeds, c.MaxSeries),
		metrics:    promrules.NewGroupMetrics(reg),
		reloadedAt: time.Now(),
		failures:   map[ruleID]uint64{},
		failing:    map[ruleIndex]string{},
		engine: promql.NewEngine(promql.EngineOpts{
			Logger:                   warningsOf(c.Logger),
			Reg:                      reg,
			MaxSamples:               c.MaxSamples,
			Timeout:                  c.Timeout,
			LookbackDelta:            c.lookback(),
			NoStepSubqueryIntervalFn: func(int64) int64 { return c.Interval.Milliseconds() },
			EnableAtModifier:         true,
			EnableNegativeOffset:     true,
			Parser:                   promQL,
		}),
	}
	e.rules.Store(set)
	e.feed.choose(newSelection(set.selects))
	return e, nil
}

// Reads tells whether some rule may read a series of a name, so that nobody
// needs to make samples that Append would not store.
func (e *Evaluator) Reads(name string) bool { return e.feed.mayRead(name) }

// Append stores the samples of one moment, those that some rule selects. A
// series that had a sample at the call before and has none now ends. It does
// not keep the samples.
func (e *Evaluator) Append(at time.Time, samples []Sample) error {
	return e.feed.append(context.Background(), at, samples)
}

// Run evaluates the rules until the context ends. It is to be called once.
func (e *Evaluator) Run(ctx context.Context) error {
	manager, err := e.start(ctx)
	if err != nil {
		return err
	}
	var running sync.WaitGroup
	running.Go(manager.Run)
	defer running.Wait()
	defer manager.Stop()

	tick := time.NewTicker(maintainEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			e.maintain(ctx)
		}
	}
}

func (e *Evaluator) start(ctx context.Context) (*promrules.Manager, error) {
	e.reloading.Lock()
	defer e.reloading.Unlock()
	if e.manager != nil {
		return nil, errors.New("rules: Run was called twice")
	}
	manager := promrules.NewManager(e.options(ctx))
	e.manager = manager
	return manager, e.update(e.rules.Load())
}

func (e *Evaluator) options(ctx context.Context) *promrules.ManagerOptions {
	return &promrules.ManagerOptions{
		NameValidationScheme: names,
		ExternalURL:          &url.URL{},
		QueryFunc:            e.query,
		NotifyFunc:           func(context.Context, string, ...*promrules.Alert) {},
		Context:              ctx,
		AppendableV2:         e.outputs,
		Queryable:            e.store,
		// A failing rule is logged by note, once and not every second.
		Logger:      slog.New(slog.DiscardHandler),
		Metrics:     e.metrics,
		GroupLoader: current{&e.rules},
		Parser:      promQL,
	}
}

// current is the set of rules in force, as the loader of rule groups.
type current struct{ *atomic.Pointer[ruleSet] }

// Load implements rules.GroupLoader.
func (c current) Load(file string, _ bool, _ model.ValidationScheme) (*rulefmt.RuleGroups, []error) {
	return c.Pointer.Load().load(file)
}

// Parse implements rules.GroupLoader.
func (c current) Parse(query string) (parser.Expr, error) { return promQL.ParseExpr(query) }

func (e *Evaluator) update(set *ruleSet) error {
	if err := e.manager.Update(e.config.Interval, set.files, labels.EmptyLabels(), "", e.iterate); err != nil {
		return fmt.Errorf("putting rules in force: %w", err)
	}
	groups := e.manager.RuleGroups()
	e.groups.Store(&groups)
	return nil
}

// query evaluates one rule's expression.
func (e *Evaluator) query(ctx context.Context, expr string, at time.Time) (promql.Vector, error) {
	result, err := promrules.EngineQueryFunc(e.engine, e.store)(ctx, expr, at)
	if err != nil {
		return nil, err
	}
	for i := range result {
		if result[i].H != nil {
			return nil, errNative
		}
	}
	return result, nil
}

// iterate evaluates one group once. A panic costs this evaluation only.
func (e *Evaluator) iterate(ctx context.Context, g *promrules.Group, at time.Time) {
	defer func() {
		if cause := recover(); cause != nil {
			e.mu.Lock()
			e.panics++
			e.mu.Unlock()
			e.config.Logger.Error("Evaluating a rule group panicked", "group", g.Name(), "panic", fmt.Sprint(cause), "stack", string(debug.Stack()))
		}
	}()
	promrules.DefaultEvalIterationFunc(withInterval(ctx, g.Interval()), g, at)
	if ctx.Err() == nil {
		e.note(g)
	}
}

// note counts the rules of a group that failed, and logs those that fail anew.
func (e *Evaluator) note(g *promrules.Group) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i, r := range g.Rules() {
		at := ruleIndex{g.File(), g.Name(), i}
		logger := e.config.Logger.With("file", at.file, "group", at.group, "rule", r.Name())
		before, failed := e.failing[at]
		if r.Health() != promrules.HealthBad {
			if failed {
				delete(e.failing, at)
				logger.Info("Rule works again")
			}
			continue
		}
		e.failures[ruleID{at.file, at.group, r.Name()}]++
		err := fmt.Sprint(r.LastError())
		e.failing[at] = err
		if err != before {
			logger.Warn("Rule failed", "err", err)
		}
	}
}

// maintain keeps the store in shape. A panic costs this round only.
func (e *Evaluator) maintain(ctx context.Context) {
	defer func() {
		if cause := recover(); cause != nil {
			e.mu.Lock()
			e.panics++
			e.mu.Unlock()
			e.config.Logger.Error("Maintaining the store of the rules panicked", "panic", fmt.Sprint(cause), "stack", string(debug.Stack()))
		}
	}()
	e.store.maintain(ctx)
}

// Reload reads the rule files again and puts them in force. When one of them
// is bad, the rules in force stay, and /metrics says so. What a rule that
// stays has recorded goes on.
func (e *Evaluator) Reload() error {
	e.reloading.Lock()
	defer e.reloading.Unlock()
	err := e.reload()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.reloadErr = err
	if err != nil {
		return fmt.Errorf("reloading rules, those in force stay: %w", err)
	}
	e.reloadedAt = time.Now()
	return nil
}

func (e *Evaluator) reload() error {
	set, err := load(e.config)
	if err != nil {
		return err
	}
	before := e.rules.Swap(set)
	if e.manager != nil {
		if err := e.update(set); err != nil {
			e.rules.Store(before)
			return err
		}
	}
	e.feed.choose(newSelection(set.selects))
	e.forget(set)
	return nil
}

// forget drops what was noted of groups that are gone, and lets the failures
// of the others be found anew.
func (e *Evaluator) forget(set *ruleSet) {
	e.mu.Lock()
	defer e.mu.Unlock()
	clear(e.failing)
	maps.DeleteFunc(e.failures, func(id ruleID, _ uint64) bool { return !set.has(id) })
}

// Recorded returns the newest value of each recorded series, sorted by name
// and labels. Values that are not known are left out.
func (e *Evaluator) Recorded() []Recorded {
	var all []Recorded
	for _, out := range e.outputs.current(time.Now()) {
		r := Recorded{Name: out.labels.Get(model.MetricNameLabel), Labels: out.labels.Map(), Value: out.value}
		delete(r.Labels, model.MetricNameLabel)
		all = append(all, r)
	}
	return all
}

// Close closes the store. It is to be called after Run has returned.
func (e *Evaluator) Close() error {
	return errors.Join(e.engine.Close(), e.store.Close())
}
