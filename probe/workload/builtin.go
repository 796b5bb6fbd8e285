package workload

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Builtin returns the classes that are known by name: four common shapes in
// tokens of prompt and output.
func Builtin() []Class {
	var classes []Class
	for _, c := range []struct {
		name           string
		prompt, output int
	}{
		{"chat", 512, 256},
		{"generation", 1024, 1024},
		{"rag", 4096, 512},
		{"document", 10240, 1536},
	} {
		classes = append(classes, Class{Name: c.name, Weight: 1, Prompt: FixedLength(c.prompt), Output: FixedLength(c.output)})
	}
	return classes
}

// longestOutput is how many tokens the class "longest" generates.
const longestOutput = 256

// Longest is the class "longest": a prompt that, with 256 tokens of output,
// fills a context of so many tokens. In a context of less than 512 tokens each has a half.
func Longest(maxModelLen int) (Class, error) {
	if maxModelLen < 2 || maxModelLen > MaxTokens {
		return Class{}, fmt.Errorf("class longest: a context of %d tokens, want 2 to %d", maxModelLen, MaxTokens)
	}
	output := min(longestOutput, maxModelLen/2)
	return Class{Name: "longest", Weight: 1, Prompt: FixedLength(maxModelLen - output), Output: FixedLength(output)}, nil
}

func builtinNames() []string {
	var names []string
	for _, c := range Builtin() {
		names = append(names, c.Name)
	}
	return names
}

// ClassSyntax is what ParseClass reads.
const ClassSyntax = "NAME[:KEY=VALUE,...], where NAME alone is one of chat, generation, rag and document, and the keys are" +
	" prompt and output (N tokens, or buckets FROM-TO@WEIGHT|...), prompt-sd, prompt-distribution (normal, lognormal), prompt-min, prompt-max," +
	" the same for output, weight, slo (METRIC:pPERCENTILE:BOUND, may be repeated), chat, natural-end," +
	" prefix (tokens), prefix-share, prefix-groups, turns, think (a time, or fixed:TIME) and max-prompt"

// ParseClass reads a class in the form of ClassSyntax, such as
// chat:weight=3 or short:prompt=512,prompt-sd=128,output=256,slo=ttft:p99:800ms.
func ParseClass(text string) (Class, error) {
	name, rest, _ := strings.Cut(text, ":")
	c := Class{Name: name, Weight: 1}
	for _, b := range Builtin() {
		if b.Name == name {
			c = b
		}
	}
	seen := map[string]bool{}
	for setting := range strings.SplitSeq(rest, ",") {
		if rest == "" {
			break
		}
		key, value, given := strings.Cut(setting, "=")
		if seen[key] && key != "slo" {
			return Class{}, fmt.Errorf("class %q: %s is given twice", text, key)
		}
		seen[key] = true
		if err := c.set(key, value, given); err != nil {
			return Class{}, fmt.Errorf("class %q: %w", text, err)
		}
	}
	for _, l := range []*Lengths{&c.Prompt, &c.Output} {
		// A deviation without a shape is the normal distribution's, as in other tools.
		if l.SD > 0 && (l.Distribution == Fixed || l.Distribution == "") {
			l.Distribution = Normal
		}
	}
	if err := c.Validate(); err != nil {
		if validName(name) && !(c.Prompt.given() && c.Output.given()) {
			err = fmt.Errorf("%w: give both, as in %s:prompt=512,output=256, or one of %s", err, name, strings.Join(builtinNames(), ", "))
		}
		return Class{}, err
	}
	return c, nil
}

func (c *Class) set(key, value string, given bool) error {
	var err error
	switch key {
	case "weight":
		err = setFloat(&c.Weight, value)
	case "slo":
		var s SLO
		if s, err = ParseSLO(value); err == nil {
			c.SLO = append(c.SLO, s)
		}
		return err
	case "chat":
		err = setBool(&c.Chat, value, given)
	case "natural-end":
		err = setBool(&c.NaturalEnd, value, given)
	case "prefix":
		err = setInt(&c.Prefix.Tokens, value)
	case "prefix-share":
		err = setFloat(&c.Prefix.Share, value)
	case "prefix-groups":
		err = setInt(&c.Prefix.Groups, value)
	case "turns":
		err = setInt(&c.Session.Turns, value)
	case "max-prompt":
		err = setInt(&c.Session.MaxPrompt, value)
	case "think":
		var d time.Duration
		text, fixed := strings.CutPrefix(value, "fixed:")
		d, err = time.ParseDuration(text)
		c.Session.ThinkTime, c.Session.FixedThinkTime = d.Seconds(), fixed
	default:
		which, part, _ := strings.Cut(key, "-")
		switch which {
		case "prompt":
			err = c.Prompt.set(part, value)
		case "output":
			err = c.Output.set(part, value)
		default:
			return fmt.Errorf("no key %q: want %s", key, ClassSyntax)
		}
	}
	if err != nil {
		return fmt.Errorf("%s is %q: %w", key, value, err)
	}
	return nil
}

func (l *Lengths) set(part, value string) error {
	switch part {
	case "":
		if strings.HasPrefix(value, "-") {
			return errors.New("want 1 token or more")
		}
		if strings.ContainsAny(value, "-@|") {
			l.Distribution, l.Mean = Buckets, 0
			return setBuckets(&l.Buckets, value)
		}
		if l.Distribution == "" {
			l.Distribution = Fixed
		}
		return setFloat(&l.Mean, value)
	case "sd":
		return setFloat(&l.SD, value)
	case "distribution":
		l.Distribution = Distribution(value)
		return nil
	case "min":
		return setInt(&l.Min, value)
	case "max":
		return setInt(&l.Max, value)
	}
	return fmt.Errorf("no such key: want %s", ClassSyntax)
}

// setBuckets reads FROM-TO@WEIGHT joined by bars; without @WEIGHT it is 1.
func setBuckets(target *[]Bucket, text string) error {
	*target = nil
	for part := range strings.SplitSeq(text, "|") {
		b := Bucket{Weight: 1}
		lengths, weight, given := strings.Cut(part, "@")
		if given {
			if err := setFloat(&b.Weight, weight); err != nil {
				return err
			}
		}
		from, to, ok := strings.Cut(lengths, "-")
		if !ok {
			to = from
		}
		if err := setInt(&b.From, from); err != nil {
			return err
		}
		if err := setInt(&b.To, to); err != nil {
			return err
		}
		*target = append(*target, b)
	}
	return nil
}

func setInt(target *int, text string) error {
	n, err := strconv.Atoi(text)
	if err != nil {
		return fmt.Errorf("want a whole number, not %q", text)
	}
	*target = n
	return nil
}

func setFloat(target *float64, text string) error {
	x, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return fmt.Errorf("want a number, not %q", text)
	}
	*target = x
	return nil
}

// setBool reads a switch; the key alone turns it on.
func setBool(target *bool, text string, given bool) error {
	if !given {
		*target = true
		return nil
	}
	b, err := strconv.ParseBool(text)
	if err != nil {
		return fmt.Errorf("want true or false")
	}
	*target = b
	return nil
}
