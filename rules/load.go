package rules

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
)

// maxFileBytes is the size of the largest rule file that is read.
const maxFileBytes = 1 << 20

// promQL parses every expression here: the language without its experiments.
var promQL = parser.NewParser(parser.Options{})

// ruleSet is a set of rule files that were all found good. It is what the rule
// groups are made from, so that no file is read twice.
type ruleSet struct {
	files  []string
	groups map[string]*rulefmt.RuleGroups
	// selects are the matchers of every selector in every rule.
	selects [][]*labels.Matcher
	// help is the help text by recorded name.
	help map[string]string
}

// load returns the groups of one file.
func (s *ruleSet) load(file string) (*rulefmt.RuleGroups, []error) {
	g, ok := s.groups[file]
	if !ok {
		return nil, []error{fmt.Errorf("rule file %s was not loaded", file)}
	}
	return g, nil
}

// has tells whether a group of the set records a name.
func (s *ruleSet) has(id ruleID) bool {
	file, ok := s.groups[id.file]
	return ok && slices.ContainsFunc(file.Groups, func(g rulefmt.RuleGroup) bool {
		return g.Name == id.group && slices.ContainsFunc(g.Rules, func(r rulefmt.Rule) bool { return r.Record == id.rule })
	})
}

// load reads and checks every rule file of a configuration. The error names
// all that is wrong, each with file, group and rule.
func load(c Config) (*ruleSet, error) {
	l := limits{retention: c.Retention, reserved: make(map[string]bool, len(c.Reserved))}
	for _, name := range c.Reserved {
		l.reserved[name] = true
	}
	set := &ruleSet{groups: map[string]*rulefmt.RuleGroups{}, help: map[string]string{}}
	var errs []error
	if c.Shipped {
		for _, name := range shippedFiles() {
			errs = append(errs, set.add(name, func() (io.ReadCloser, error) { return shipped.Open(name) }, l, c.Logger))
		}
	}
	files, err := expand(c.Files, c.Logger)
	errs = append(errs, err)
	for _, name := range files {
		errs = append(errs, set.add(name, func() (io.ReadCloser, error) { return openRegular(name) }, l, c.Logger))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return set, nil
}

// expand resolves patterns to the paths of files, each once, in order.
func expand(patterns []string, logger *slog.Logger) ([]string, error) {
	var files []string
	var errs []error
	for _, pattern := range patterns {
		if !strings.ContainsAny(pattern, `*?[`) {
			files = append(files, pattern)
			continue
		}
		matches, err := filepath.Glob(pattern)
		if err != nil {
			errs = append(errs, fmt.Errorf("rule files %s: %w", pattern, err))
		}
		if len(matches) == 0 {
			logger.Warn("No rule file matches", "pattern", pattern)
		}
		files = append(files, matches...)
	}
	seen := map[string]bool{}
	files = slices.DeleteFunc(files, func(f string) bool {
		f = filepath.Clean(f)
		double := seen[f]
		seen[f] = true
		return double
	})
	return files, errors.Join(errs...)
}

// add reads, parses and checks one file. Some malformed files make the YAML
// decoder panic when Prometheus' loader asks it for a second document.
func (s *ruleSet) add(name string, open func() (io.ReadCloser, error), l limits, logger *slog.Logger) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("rule file %s: parsing it panicked: %v", name, cause)
		}
	}()
	content, err := read(open)
	if err != nil {
		return fmt.Errorf("reading rule file %s: %w", name, strip(err))
	}
	parsed, errs := rulefmt.Parse(content, false, names, promQL, logger.With("file", name))
	if len(errs) > 0 {
		// The file is decoded twice, so a syntax error comes twice.
		errs = slices.CompactFunc(errs, func(a, b error) bool { return a.Error() == b.Error() })
		for i, err := range errs {
			errs[i] = fmt.Errorf("rule file %s: %w", name, oneLine(err))
		}
		return errors.Join(errs...)
	}
	for _, g := range parsed.Groups {
		if err := l.refuseGroup(g); err != nil {
			errs = append(errs, fmt.Errorf("rule file %s: group %q: %w", name, g.Name, err))
		}
		for i, r := range g.Rules {
			expr, err := promQL.ParseExpr(r.Expr)
			if err == nil {
				err = l.refuseRule(g, r, expr)
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("rule file %s: group %q, rule %d, %q: %w", name, g.Name, i+1, r.Record+r.Alert, oneLine(err)))
				continue
			}
			s.selects = append(s.selects, parser.ExtractSelectors(expr)...)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	help, err := helpOf(name, content)
	if err != nil {
		return err
	}
	for record, text := range help {
		// Two rules may record one name, but it has one help text.
		if _, known := s.help[record]; !known {
			s.help[record] = text
		}
	}
	s.files = append(s.files, name)
	s.groups[name] = parsed
	return nil
}

func read(open func() (io.ReadCloser, error)) ([]byte, error) {
	f, err := open()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return nil, err
	}
	if len(content) > maxFileBytes {
		return nil, fmt.Errorf("it is larger than %d bytes", maxFileBytes)
	}
	return content, nil
}

// strip takes the path out of a file error: it is named already.
func strip(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}

// oneLine puts an error that takes several lines into one.
func oneLine(err error) error {
	if !strings.Contains(err.Error(), "\n") {
		return err
	}
	var parts []string
	for line := range strings.SplitSeq(err.Error(), "\n") {
		parts = append(parts, strings.TrimSpace(line))
	}
	return errors.New(strings.ReplaceAll(strings.Join(parts, "; "), ":; ", ": "))
}

// openRegular opens a regular file; a pipe that nobody writes to would never open.
func openRegular(name string) (io.ReadCloser, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("it is not a regular file")
	}
	return os.Open(name)
}
