package rules

import (
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// document is a rule file with its comments.
type document struct {
	Groups []struct {
		Name  string      `yaml:"name"`
		Rules []yaml.Node `yaml:"rules"`
	} `yaml:"groups"`
}

// helpOf reads the help text of each recorded name off a rule file that was
// found good: it is the comment above the first rule that records it.
func helpOf(file string, content []byte) (map[string]string, error) {
	var doc document
	if err := yaml.Unmarshal(content, &doc); err != nil {
		return nil, fmt.Errorf("reading the comments of rule file %s: %w", file, err)
	}
	help := map[string]string{}
	for _, g := range doc.Groups {
		for i := range g.Rules {
			node := &g.Rules[i]
			name := recordOf(node)
			if _, done := help[name]; done {
				continue
			}
			text := comment(node)
			if text == "" {
				text = fmt.Sprintf("Recorded by group %s of rule file %s.", g.Name, file)
			}
			help[name] = text
		}
	}
	return help, nil
}

// recordOf returns the name that a rule's mapping records.
func recordOf(rule *yaml.Node) string {
	for i := 0; i+1 < len(rule.Content); i += 2 {
		if rule.Content[i].Value == "record" {
			return rule.Content[i+1].Value
		}
	}
	return ""
}

// comment returns the comment above a rule as one line of text.
func comment(rule *yaml.Node) string {
	text := rule.HeadComment
	if text == "" && len(rule.Content) > 0 {
		text = rule.Content[0].HeadComment
	}
	// A comment that is set off by an empty line heads a section, not the rule.
	if at := strings.LastIndex(text, "\n\n"); at >= 0 {
		text = text[at+2:]
	}
	var words []string
	for line := range strings.SplitSeq(text, "\n") {
		words = append(words, strings.Fields(strings.TrimLeft(line, "# "))...)
	}
	return strings.Join(words, " ")
}
