package workload

import (
	"errors"
	"math"
	"strings"
)

// TextShape says how long a text is in tokens: Overhead + TokensPerWord for
// each word. Both come from the engine: from /tokenize, or from the prompt
// tokens it counted, see TextScale.
type TextShape struct {
	TokensPerWord float64
	// Overhead in tokens is what the engine adds, such as a chat template.
	Overhead float64
	// Words to choose from; nil takes a list of short common English words.
	Words []string
}

// MakeText fills Text with as many words as come nearest to PromptTokens
// tokens, at least one. Prompts that share tokens share the same share of words.
func (r *Request) MakeText(s TextShape) {
	words := s.Words
	if len(words) == 0 {
		words = commonWords
	}
	perWord := s.TokensPerWord
	if !(perWord > 0) {
		perWord = 1
	}
	var b strings.Builder
	b.Grow(int(float64(r.PromptTokens)/perWord) * 6)
	tokens, written := 0, 0
	var numbers []int
	for i, p := range r.content {
		tokens += p.length
		// Rounding the running sum keeps the total right however many pieces
		// there are, and equal beginnings equal.
		end := int(math.Round((float64(tokens) - s.Overhead) / perWord))
		if i == len(r.content)-1 {
			end = max(end, 1)
		}
		if end <= written {
			continue
		}
		numbers = appendStream(numbers[:0], piece{key: p.key, length: end - written}, len(words))
		for _, n := range numbers {
			if b.Len() > 0 {
				b.WriteByte(' ')
			}
			b.WriteString(words[n])
		}
		written = end
	}
	r.Text = b.String()
}

// TextScale learns a TextShape from prompts whose words were counted by the
// caller and whose tokens were counted by the engine (least squares). It is
// not safe for concurrent use.
type TextScale struct {
	n, words, tokens, wordsWords, wordsTokens float64
}

// Observe adds a prompt of so many words that the engine counted as so many tokens.
func (s *TextScale) Observe(words, tokens int) {
	w, t := float64(words), float64(tokens)
	s.n++
	s.words += w
	s.tokens += t
	s.wordsWords += w * w
	s.wordsTokens += w * t
}

// Shape returns the fitted shape without words; the error is that prompts of
// two different lengths at least must have been seen, longer ones with more tokens.
func (s *TextScale) Shape() (TextShape, error) {
	spread := s.n*s.wordsWords - s.words*s.words
	if !(spread > 0) {
		return TextShape{}, errors.New("text length: observe prompts of two lengths at least")
	}
	slope := (s.n*s.wordsTokens - s.words*s.tokens) / spread
	if !(slope > 0) {
		return TextShape{}, errors.New("text length: the engine counts no more tokens for longer texts; does it report prompt tokens?")
	}
	return TextShape{TokensPerWord: slope, Overhead: (s.tokens - slope*s.words) / s.n}, nil
}

// WithinLength says whether a prompt of so many tokens is near enough to what
// was asked for: 2 % or 4 tokens, whichever is more.
func WithinLength(asked, counted int) bool {
	return math.Abs(float64(counted-asked)) <= max(0.02*float64(asked), 4)
}

// commonWords are single tokens, with the space before them, in most vocabularies.
var commonWords = strings.Fields(`
the of and to in is that for it as was with be by on not he this are or his from at which but have an had they you were
their one all we can her has there been if more when will would who so no said what up its about into than them only
other time new some could these two may then do first any my now such like our over man me even most made after also
did many off before must well back through years where much your way down should because long each just state those
people too mr how little good world make very year still see own work men day get here old life both between being
under three never know same last another while us might great go come since against right came take used himself few
house use place during high without again home around small however found part school once general say united war
every does got left number water course until always away something fact less public put thing almost hand enough far
took head yet system set told better nothing night end why asked later knew point going look
`)
