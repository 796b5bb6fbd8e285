package main

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kingpin/v2"
	"github.com/dustin/go-humanize"
	toolkit "github.com/prometheus/exporter-toolkit/web"

	"headroom_exporter/capacity/curve"
	"headroom_exporter/collector/engine"
	"headroom_exporter/collector/gpu"
	"headroom_exporter/probe/knee"
	"headroom_exporter/sidecar"
)

// standardInput is the file that a lone - stands for.
const standardInput = "/dev/stdin"

// withStandardInput spells a lone - out, which kingpin would hand on as an
// empty text (its issue 370).
func withStandardInput(args []string) []string {
	spelled := slices.Clone(args)
	for i, arg := range spelled {
		if arg == "-" {
			spelled[i] = standardInput
		}
	}
	return spelled
}

// explain words an error of the arguments for the one who gave them.
func explain(app *kingpin.Application, args []string, err error) string {
	text := err.Error()
	if commands := commandsBelow(app, args, text); commands != "" {
		text += ": want one of " + commands
	}
	var number *strconv.NumError
	if errors.As(err, &number) {
		text = fmt.Sprintf("%q is no value that fits here", number.Num)
	}
	return culprit(app, args, err) + text
}

// commandsBelow are the commands that could stand where err wants one; empty
// where it wants none.
func commandsBelow(app *kingpin.Application, args []string, err string) string {
	if !strings.HasPrefix(err, "expected command but got ") && !strings.HasPrefix(err, "must select a subcommand of ") {
		return ""
	}
	commands := app.Model().Commands
	if parsed, _ := app.ParseContext(args); parsed != nil && parsed.SelectedCommand != nil {
		commands = parsed.SelectedCommand.Model().Commands
	}
	var names []string
	for _, c := range commands {
		if !c.Hidden {
			names = append(names, c.Name)
		}
	}
	return strings.Join(names, ", ")
}

// culprit names the flag or environment variable whose value gave err, as a
// prefix for the error, because kingpin's errors about values name neither.
// It is empty when no value is at fault.
func culprit(app *kingpin.Application, args []string, err error) string {
	parsed, _ := app.ParseContext(args)
	if parsed == nil {
		return ""
	}
	for _, element := range parsed.Elements {
		flag, ok := element.Clause.(*kingpin.FlagClause)
		if ok && element.Value != nil && rejects(flag.Model(), *element.Value, err) {
			return "--" + flag.Model().Name + ": "
		}
	}
	flags := app.Model().Flags
	if parsed.SelectedCommand != nil {
		flags = append(flags, parsed.SelectedCommand.Model().Flags...)
	}
	for _, flag := range flags {
		if value := os.Getenv(flag.Envar); flag.Envar != "" && value != "" && rejects(flag, value, err) {
			return "$" + flag.Envar + ": "
		}
	}
	return ""
}

func rejects(flag *kingpin.FlagModel, value string, err error) bool {
	again := flag.Value.Set(value)
	return again != nil && again.Error() == err.Error()
}

// checkValues refuses what no flag of the program takes, whoever reads it: a
// number that is none or without end, and a time below 0.
func checkValues(app *kingpin.Application, selected string) error {
	model := app.Model()
	flags := model.Flags
	for _, c := range model.FlattenedCommands() {
		if c.FullCommand == selected {
			flags = append(flags, c.Flags...)
		}
	}
	for _, flag := range flags {
		getter, ok := flag.Value.(kingpin.Getter)
		if !ok {
			continue
		}
		switch v := getter.Get().(type) {
		case float64:
			if math.IsNaN(v) || math.IsInf(v, 0) {
				return fmt.Errorf("--%s %v: must be a finite number", flag.Name, v)
			}
		case time.Duration:
			if v < 0 {
				return fmt.Errorf("--%s %s: must not be negative", flag.Name, v)
			}
		}
	}
	return nil
}

// checkPaths refuses a file that is given on the command line without a name,
// as by a shell's variable that is not set: the command would do without it,
// and not say so. An environment variable that is empty is not set.
func checkPaths(app *kingpin.Application, args []string) error {
	parsed, err := app.ParseContext(args)
	if err != nil {
		return nil // It was said when the arguments were read.
	}
	for _, element := range parsed.Elements {
		flag, ok := element.Clause.(*kingpin.FlagClause)
		if !ok || element.Value == nil || *element.Value != "" {
			continue
		}
		// An empty --web.config.file is none, as with every exporter.
		if name := flag.Model().Name; name != "web.config.file" && (strings.HasSuffix(name, ".file") || strings.HasSuffix(name, "-file") || strings.HasPrefix(name, "out.")) {
			return fmt.Errorf("--%s is empty: give the path of a file, or leave the flag out", name)
		}
	}
	return nil
}

// byteSize is a flag's value in bytes: plain, or with a decimal (GB) or
// binary (GiB) unit.
type byteSize float64

func (b *byteSize) Set(text string) error {
	n, err := humanize.ParseBytes(text)
	if err != nil {
		return fmt.Errorf("%q is no size: give bytes, or a number with a unit such as 16GB or 128KiB", text)
	}
	*b = byteSize(n)
	return nil
}

func (b *byteSize) String() string {
	if *b == 0 {
		return "0"
	}
	return humanize.Bytes(uint64(*b))
}

// checkWebConfig checks the file of --web.config.file, which may be empty.
func checkWebConfig(path string) error {
	if path != "" {
		info, err := os.Stat(path)
		if err == nil && !info.Mode().IsRegular() {
			return fmt.Errorf("--web.config.file %s: not a regular file", path)
		}
	}
	if err := toolkit.Validate(path); err != nil {
		return fmt.Errorf("--web.config.file %s: %w", path, err)
	}
	return nil
}

// wholeNumber is a flag's value that counts something.
type wholeNumber int

func (n *wholeNumber) Set(text string) error {
	v, err := strconv.ParseInt(text, 10, 32)
	if err != nil || v < 0 {
		return fmt.Errorf("%q is no whole number of 0 or more", text)
	}
	*n = wholeNumber(v)
	return nil
}

func (n *wholeNumber) String() string { return strconv.Itoa(int(*n)) }

// count makes a flag take a whole number into an int.
func count(f *kingpin.FlagClause, into *int) { f.SetValue((*wholeNumber)(into)) }

// minInterval is the shortest time between two readings: the recording rules
// are evaluated as often, and Prometheus' store refuses more.
const minInterval = 100 * time.Millisecond

func checkInterval(interval time.Duration) error {
	if interval < minInterval {
		return fmt.Errorf("--engine.interval %s: must be at least %s", interval, minInterval)
	}
	return nil
}

// addEngineFlags adds where the engine is and how to be let in.
func addEngineFlags(c *kingpin.CmdClause, e *engine.Config) {
	c.Flag("engine.url", "Base URL of the engine, with or without /v1; its metrics page and API are found under it. A URL with another path is taken as the metrics page itself.").Default("http://127.0.0.1:8000").StringVar(&e.URL)
	c.Flag("engine.bearer-token-file", "File with a bearer token for the engine; serve reads it anew for every request.").StringVar(&e.BearerTokenFile)
	c.Flag("engine.header-file", "File with HTTP headers for the engine, one `Name: value` a line.").StringVar(&e.HeaderFile)
	c.Flag("engine.tls.ca-file", "CA certificates that the engine's certificate is checked against.").StringVar(&e.TLS.CAFile)
	c.Flag("engine.tls.cert-file", "Client certificate to show to the engine.").StringVar(&e.TLS.CertFile)
	c.Flag("engine.tls.key-file", "Key of the client certificate.").StringVar(&e.TLS.KeyFile)
	c.Flag("engine.tls.server-name", "Name expected in the engine's certificate.").StringVar(&e.TLS.ServerName)
	c.Flag("engine.tls.insecure-skip-verify", "Do not check the engine's certificate.").BoolVar(&e.TLS.InsecureSkipVerify)
}

// addSLOFlags adds what the service promises.
func addSLOFlags(c *kingpin.CmdClause, slo *sidecar.SLO) {
	c.Flag("slo.ttft", "Time to first token that the service promises; the queue may use what prefill leaves of it.").Default("2.5s").DurationVar(&slo.TimeToFirstToken)
	c.Flag("slo.itl", "Time between two tokens, and per output token, that the service promises; 0 promises nothing.").Default("100ms").DurationVar(&slo.TokenLatency)
	c.Flag("slo.e2e", "Time to the last token that the service promises; 0 promises nothing.").Default("0s").DurationVar(&slo.E2ELatency)
	c.Flag("slo.objective", "Share of requests or tokens that must keep the promises. For an SLO ratio, a promise must be a bound of the engine's histogram.").Default("0.99").Float64Var(&slo.Objective)
}

func checkSLO(slo sidecar.SLO) error {
	switch {
	case slo.TimeToFirstToken <= 0:
		return fmt.Errorf("--slo.ttft %s: must be above 0", slo.TimeToFirstToken)
	case slo.TokenLatency < 0:
		return fmt.Errorf("--slo.itl %s: must not be negative", slo.TokenLatency)
	case slo.E2ELatency < 0:
		return fmt.Errorf("--slo.e2e %s: must not be negative", slo.E2ELatency)
	case !(slo.Objective > 0 && slo.Objective < 1):
		return fmt.Errorf("--slo.objective %v: must be a share between 0 and 1, such as 0.99", slo.Objective)
	}
	return nil
}

// gpuFlags choose how GPUs are read.
type gpuFlags struct {
	nvml    string
	devices []string
}

func addGPUFlags(c *kingpin.CmdClause, nvml, others string) *gpuFlags {
	f := &gpuFlags{}
	c.Flag("gpu.nvml", "Read GPUs through NVML: "+others+"auto, off, or the path of a libnvidia-ml.so.1.").Default(nvml).StringVar(&f.nvml)
	c.Flag("gpu.device", "GPU of the engine, by UUID or index; repeatable; found out when not given.").StringsVar(&f.devices)
	return f
}

// collector returns what reads the GPUs; peakBandwidth is 0 when NVML tells it.
func (f *gpuFlags) collector(peakBandwidth float64, logger *slog.Logger) (*gpu.Collector, error) {
	config := gpu.Config{Mode: f.nvml, Devices: f.devices, PeakBandwidth: peakBandwidth, Logger: logger}
	if f.nvml != gpu.ModeAuto && f.nvml != gpu.ModeOff {
		config.Mode, config.LibraryPath = gpu.ModeAuto, f.nvml
		if _, err := os.Stat(f.nvml); err != nil {
			return nil, fmt.Errorf("--gpu.nvml: neither %s, %s nor a library: %w", gpu.ModeAuto, gpu.ModeOff, err)
		}
	}
	return gpu.New(config)
}

// deviceOf returns the memory in bytes and the model of the engine's first
// GPU; NaN and empty when it is not known which GPUs are the engine's.
func deviceOf(s gpu.Snapshot) (memoryBytes float64, model string) {
	if s.Status.SelectionAmbiguous || len(s.Readings) == 0 {
		return math.NaN(), ""
	}
	return s.Readings[0].MemorySizeBytes, s.Readings[0].Model
}

// rulesFlags choose the recording rules and where their window is kept.
type rulesFlags struct {
	files       []string
	shipped     bool
	storagePath string
	retention   time.Duration
}

func addRulesFlags(c *kingpin.CmdClause) *rulesFlags {
	f := &rulesFlags{}
	c.Flag("rules.file", "Prometheus rule file with recording rules to evaluate as well, or a pattern; repeatable; read again on SIGHUP and /-/reload.").StringsVar(&f.files)
	c.Flag("rules.shipped", "Evaluate the recording rules that are built in.").Default("true").BoolVar(&f.shipped)
	c.Flag("storage.path", "Directory that keeps the rules' window over a restart; in memory only when empty.").StringVar(&f.storagePath)
	c.Flag("storage.retention", "How far back a recording rule may look.").Default("2h").DurationVar(&f.retention)
	return f
}

// curveFlags choose the capacity curve, and how it counts.
type curveFlags struct {
	file       string
	correction string
	kvBound    string
	identity   *identityFlags
}

// Values of --curve.correction and --kv-bound.
const (
	correctionObserve, correctionApply = "observe", "apply"
	kvBoundOn, kvBoundOff              = "on", "off"
)

// addCurveFlags adds them; without says what holds when no file is given.
func addCurveFlags(c *kingpin.CmdClause, without string) *curveFlags {
	f := &curveFlags{}
	c.Flag("curve.file", "Capacity curve that probe measured for this engine; read again when it changes, on SIGHUP and /-/reload"+without+".").StringVar(&f.file)
	c.Flag("curve.correction", "observe shows how much slower the engine is than its curve; apply also raises the load ratio by it, and never lowers it.").Default(correctionObserve).EnumVar(&f.correction, correctionObserve, correctionApply)
	c.Flag("kv-bound", "off leaves the KV cache's usage out of the headroom, as where an offload tier keeps it full on purpose.").Default(kvBoundOn).EnumVar(&f.kvBound, kvBoundOn, kvBoundOff)
	f.identity = addIdentityFlags(c)
	return f
}

// open reads the curve file; nil when none is given.
func (f *curveFlags) open(logger *slog.Logger) (*sidecar.CurveFile, error) {
	if err := f.identity.apply(&curve.Identity{}); err != nil {
		return nil, err
	}
	if f.file == "" {
		return nil, nil
	}
	file, err := sidecar.OpenCurveFile(f.file, logger)
	if err != nil {
		return nil, fmt.Errorf("--curve.file: %w", err)
	}
	partial := partialOf(f.file)
	file.Probing = func() bool { return errors.Is(knee.JournalInUse(partial), knee.ErrInUse) }
	return file, nil
}

// configure sets what the flags say of a sidecar.
func (f *curveFlags) configure(c *sidecar.Config) {
	c.ApplyCorrection = f.correction == correctionApply
	c.TokenSlotsUnbound = f.kvBound == kvBoundOff
	c.Identity = func(o engine.Observation, s gpu.Snapshot) (curve.Identity, error) {
		return gatherIdentity(o, s, f.identity.overrides)
	}
}
