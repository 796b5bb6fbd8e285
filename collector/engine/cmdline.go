package engine

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Bounds of a look through the process list.
const (
	maxProcesses   = 4096
	maxCommandLine = 64 << 10
)

// commandLineOf looks through a proc file system for the process of an
// engine that serves a port and returns the limits in its arguments; false
// when there is none.
func commandLineOf(procPath string, t *table, port string) (settings, bool) {
	if t.commandLine == nil {
		return settings{}, false
	}
	entries, err := os.ReadDir(procPath)
	if err != nil {
		return settings{}, false
	}
	for i, e := range entries {
		if i == maxProcesses {
			break
		}
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		raw, err := os.ReadFile(filepath.Join(procPath, e.Name(), "cmdline"))
		if err != nil || len(raw) > maxCommandLine {
			continue
		}
		argv := splitCommandLine(raw)
		s, ok := t.commandLine(argv)
		if !ok {
			continue
		}
		// On another port it is another engine's, even when it is the only one to be seen.
		if servesPort(argv, t.defaultPort, port) {
			return s, true
		}
	}
	return settings{}, false
}

// splitCommandLine splits /proc/<pid>/cmdline at its zero bytes.
func splitCommandLine(raw []byte) []string {
	raw = bytes.TrimRight(raw, "\x00")
	if len(raw) == 0 {
		return nil
	}
	var argv []string
	for _, a := range bytes.Split(raw, []byte{0}) {
		argv = append(argv, string(a))
	}
	return argv
}

// parseVLLMCommandLine reads the arguments of `vllm serve` or of its API
// server module. Retitled children ("VLLM::EngineCore") carry no arguments
// and are refused, as is every other program.
func parseVLLMCommandLine(argv []string) (settings, bool) {
	if !runs(argv, "vllm", "serve") && !runs(argv, "vllm.entrypoints.cli.main", "serve") &&
		!slices.Contains(argv, "vllm.entrypoints.openai.api_server") {
		return settings{}, false
	}
	f := flagsOf(argv)
	return settings{
		maxNumSeqs:          f.number("max-num-seqs"),
		maxNumBatchedTokens: f.number("max-num-batched-tokens"),
		maxModelLen:         f.number("max-model-len"),
		parallelism: Parallelism{
			Tensor:        f.number("tensor-parallel-size", "tp"),
			Pipeline:      f.number("pipeline-parallel-size", "pp"),
			Data:          f.number("data-parallel-size", "dp"),
			DecodeContext: f.number("decode-context-parallel-size", "dcp"),
		},
		start:      vllmFlags(f),
		configFile: f.has("config"),
	}, true
}

// parseSGLangCommandLine reads the arguments of SGLang's server.
func parseSGLangCommandLine(argv []string) (settings, bool) {
	if !runs(argv, "sglang", "serve") && !slices.Contains(argv, "sglang.launch_server") {
		return settings{}, false
	}
	f := flagsOf(argv)
	return settings{
		maxNumSeqs:  f.number("max-running-requests"),
		maxModelLen: f.number("context-length"),
		parallelism: Parallelism{
			Tensor:   f.number("tensor-parallel-size", "tp-size", "tp"),
			Pipeline: f.number("pipeline-parallel-size", "pp-size"),
			Data:     f.number("data-parallel-size", "dp-size", "dp"),
		},
		start:      sglangFlags(f),
		configFile: f.has("config"),
	}, true
}

// runs tells whether the arguments are program and command, with or without
// an interpreter before it.
func runs(argv []string, program, command string) bool {
	for i := 0; i+1 < len(argv) && i < 4; i++ {
		if filepath.Base(argv[i]) == program && argv[i+1] == command {
			return true
		}
	}
	return false
}

func servesPort(argv []string, standard, port string) bool {
	given, ok := flagsOf(argv)["port"]
	if !ok {
		given = standard
	}
	return given == port
}

// flags are arguments by name, without dashes and with "-" for "_"; the last wins.
type flags map[string]string

func flagsOf(argv []string) flags {
	f := make(flags)
	for i := 0; i < len(argv); i++ {
		a := argv[i]
		if !strings.HasPrefix(a, "-") || a == "-" || a == "--" {
			continue
		}
		name, value, joined := strings.Cut(strings.TrimLeft(a, "-"), "=")
		if !joined && i+1 < len(argv) && !strings.HasPrefix(argv[i+1], "-") {
			i++
			value = argv[i]
		}
		f[strings.ReplaceAll(name, "_", "-")] = value
	}
	return f
}

func (f flags) has(name string) bool { _, ok := f[name]; return ok }

// number returns the first of the names that holds a positive number, else 0.
func (f flags) number(names ...string) int {
	for _, name := range names {
		if n := humanNumber(f[name]); n > 0 {
			return n
		}
	}
	return 0
}

// humanNumber reads 8192, 8k (8000) or 8K (8192), and so on with m, g and t,
// as vLLM's human_readable_int does; 0 when it is no positive number.
func humanNumber(s string) int {
	factor := 1.0
	fraction := false
	if s != "" {
		exponent := strings.IndexByte("kmgt", s[len(s)-1]|0x20)
		if exponent >= 0 {
			decimal := s[len(s)-1] >= 'a'
			for range exponent + 1 {
				if decimal {
					factor *= 1000
				} else {
					factor *= 1024
				}
			}
			s = s[:len(s)-1]
			fraction = decimal // only decimal units may have one
		}
	}
	if strings.Trim(s, "0123456789") != "" && !(fraction && strings.Trim(s, "0123456789.") == "") {
		return 0
	}
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || v*factor > 1<<53 {
		return 0
	}
	return int(v * factor)
}
