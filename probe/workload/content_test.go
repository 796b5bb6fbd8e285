package workload

import (
	"math"
	"slices"
	"strings"
	"testing"
)

func request(pieces ...piece) Request {
	r := Request{content: pieces}
	r.PromptTokens = r.content.length()
	return r
}

func TestMakeTokens(t *testing.T) {
	for _, v := range []Vocabulary{SafeVocabulary(0), SafeVocabulary(512), SafeVocabulary(1), {IDs: []int{5, 9, 7}}, {First: 3, Count: 1 << 31}, {First: 7}} {
		for _, length := range []int{1, 2, 3, 4, 5, 6, 17, 100, 4096} {
			r := request(piece{key: mix(9), length: length})
			r.MakeTokens(v)
			if len(r.Tokens) != length {
				t.Fatalf("%+v: %d tokens, want %d", v, len(r.Tokens), length)
			}
			for _, id := range r.Tokens {
				if len(v.IDs) > 0 {
					if !slices.Contains(v.IDs, id) {
						t.Fatalf("%+v: id %d", v, id)
					}
				} else if id < v.First || id >= v.First+max(v.Count, 1) {
					t.Fatalf("%+v: id %d", v, id)
				}
			}
			// A shorter piece of the stream is its beginning.
			longer := request(piece{key: mix(9), length: length + 3})
			longer.MakeTokens(v)
			if !slices.Equal(longer.Tokens[:length], r.Tokens) {
				t.Fatalf("%+v: %d tokens are no beginning of %d", v, length, length+3)
			}
		}
	}
	// The memory of Tokens is used again.
	r := request(piece{key: 1, length: 100})
	r.Tokens = make([]int, 0, 200)
	first := &r.Tokens[:1][0]
	r.MakeTokens(SafeVocabulary(0))
	if &r.Tokens[0] != first {
		t.Error("new memory for tokens that had room")
	}
}

// The ids are pinned: a run is repeated byte for byte by a later release.
func TestTokensStayTheSame(t *testing.T) {
	source, err := Plan{Classes: []Class{{Name: "a", Weight: 1, Prompt: FixedLength(8), Output: FixedLength(1)}}, Seed: 1, ContentSeed: 2}.Source()
	if err != nil {
		t.Fatal(err)
	}
	r, _ := source.Next()
	r.MakeTokens(SafeVocabulary(0))
	if want := []int{6971, 22651, 20349, 22589, 1014, 5567, 5974, 9443}; !slices.Equal(r.Tokens, want) {
		t.Errorf("tokens are %v, want %v", r.Tokens, want)
	}
}

// Tokens are spread evenly: chi-square over 100 bins with 99 degrees of
// freedom stays below 148.2 at a level of 0.1 %.
func TestTokensAreUniform(t *testing.T) {
	r := request(piece{key: mix(3), length: 200000})
	r.MakeTokens(Vocabulary{First: 0, Count: 29000})
	bins := make([]float64, 100)
	for _, id := range r.Tokens {
		bins[id/290]++
	}
	chi := 0.0
	for _, n := range bins {
		chi += (n - 2000) * (n - 2000) / 2000
	}
	if chi > 148.2 {
		t.Errorf("chi-square is %.1f, want below 148.2", chi)
	}
}

func TestSafeVocabulary(t *testing.T) {
	for size, want := range map[int]Vocabulary{
		0: {First: 1000, Count: 29000}, 128256: {First: 1000, Count: 29000}, 32000: {First: 1000, Count: 29000},
		8192: {First: 1000, Count: 6680}, 512: {First: 64, Count: 416}, 1: {First: 0, Count: 1},
	} {
		if got := SafeVocabulary(size); got.First != want.First || got.Count != want.Count {
			t.Errorf("vocabulary of %d: %+v, want %+v", size, got, want)
		}
	}
}

// Whatever the seed, the first block of every request is its own.
func TestFirstBlocksAreUnique(t *testing.T) {
	const n = 100000
	for _, vocabulary := range []int{0, 20} {
		source, err := Plan{
			Classes:  []Class{{Name: "a", Weight: 1, Prompt: FixedLength(16), Output: FixedLength(1)}, {Name: "b", Weight: 1, Prompt: FixedLength(40), Output: FixedLength(1)}},
			Requests: n, Seed: 3, ContentSeed: 4,
		}.Source()
		if err != nil {
			t.Fatal(err)
		}
		seen := make(map[[16]int]int, n)
		for r := range All(source) {
			r.MakeTokens(SafeVocabulary(vocabulary))
			var block [16]int
			copy(block[:], r.Tokens)
			if other, ok := seen[block]; ok {
				t.Fatalf("vocabulary of %d: requests %d and %d begin alike", vocabulary, other, r.Index)
			}
			seen[block] = r.Index
		}
		if len(seen) != n {
			t.Errorf("%d first blocks, want %d", len(seen), n)
		}
	}
}

func TestMakeText(t *testing.T) {
	for _, words := range [][]string{nil, {"one", "two", "three"}} {
		for _, shape := range []TextShape{{TokensPerWord: 1}, {TokensPerWord: 1.3, Overhead: 12}, {TokensPerWord: 0.75}, {}} {
			shape.Words = words
			for _, tokens := range []int{1, 20, 513, 4000} {
				r := request(piece{key: mix(1), length: tokens / 3}, piece{key: mix(2), length: tokens - tokens/3})
				r.MakeText(shape)
				n := float64(len(strings.Fields(r.Text)))
				perWord := shape.TokensPerWord
				if perWord == 0 {
					perWord = 1
				}
				counted := shape.Overhead + perWord*n
				if n < 1 || n > 1 && math.Abs(counted-float64(tokens)) > perWord/2+1e-9 {
					t.Errorf("%+v: %g words are %g tokens, want %d", shape, n, counted, tokens)
				}
			}
		}
	}
	// Prompts that share a piece begin with the same words, and differ after it.
	shape := TextShape{TokensPerWord: 1.3, Overhead: 5}
	a := request(piece{key: mix(1), length: 130}, piece{key: mix(2), length: 130})
	b := request(piece{key: mix(1), length: 130}, piece{key: mix(3), length: 200})
	a.MakeText(shape)
	b.MakeText(shape)
	x, y := strings.Fields(a.Text), strings.Fields(b.Text)
	same := 0
	for same < len(x) && x[same] == y[same] {
		same++
	}
	if same != 96 { // round((130 - 5) / 1.3)
		t.Errorf("%d words are shared, want 96", same)
	}
	seen := map[string]bool{}
	for _, w := range commonWords {
		if seen[w] {
			t.Errorf("the word %q is listed twice", w)
		}
		seen[w] = true
	}
}

func TestTextScale(t *testing.T) {
	var s TextScale
	if _, err := s.Shape(); err == nil {
		t.Error("a shape from nothing")
	}
	s.Observe(100, 142)
	if _, err := s.Shape(); err == nil {
		t.Error("a shape from one length")
	}
	// 12 tokens of template and 1.3 for each word.
	for words := 200; words <= 800; words += 100 {
		s.Observe(words, 12+words*13/10)
	}
	shape, err := s.Shape()
	if err != nil || math.Abs(shape.TokensPerWord-1.3) > 1e-9 || math.Abs(shape.Overhead-12) > 1e-6 {
		t.Errorf("shape is %+v, %v, want 1.3 and 12", shape, err)
	}
	var flat TextScale
	flat.Observe(10, 5)
	flat.Observe(20, 5)
	if _, err := flat.Shape(); err == nil || !strings.Contains(err.Error(), "no more tokens for longer texts") {
		t.Errorf("texts that do not count: %v", err)
	}
	for _, c := range []struct {
		asked, counted int
		want           bool
	}{{100, 104, true}, {100, 105, false}, {1000, 1020, true}, {1000, 979, false}} {
		if got := WithinLength(c.asked, c.counted); got != c.want {
			t.Errorf("%d for %d: %t", c.counted, c.asked, got)
		}
	}
}
