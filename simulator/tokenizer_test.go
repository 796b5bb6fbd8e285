package simulator

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTokenizeRoundTrip(t *testing.T) {
	for _, text := range []string{"", "hello é", "日本\n\"\\\x00"} {
		if got := detokenize(tokenize(text)); got != text {
			t.Errorf("%q comes back as %q", text, got)
		}
	}
	// From the real engine: "HELLO", and special tokens.
	if got := detokenize([]int{76, 73, 80, 80, 83}); got != "HELLO" {
		t.Errorf("got %q", got)
	}
	if got := detokenize([]int{1, 76, 2, 259, 5000}); got != "<s>H</s>\ufffd" {
		t.Errorf("got %q", got)
	}
}

func TestTokenStrings(t *testing.T) {
	var got []string
	for _, token := range []int{0, 108, 36, 14, 259, 260} {
		got = append(got, tokenString(token))
	}
	if diff := cmp.Diff([]string{"<unk>", "h", "Ġ", "Ċ", "ÿ", ""}, got); diff != "" {
		t.Error(diff)
	}
}

func TestGeneratedTextIsPrintableAndSeeded(t *testing.T) {
	seen := map[int]bool{}
	for i := range 10000 {
		token := generatedToken(7, i)
		if b := token - firstByteToken; b < ' ' || b > '~' {
			t.Fatalf("token %d is the byte %d", i, b)
		}
		if token != generatedToken(7, i) {
			t.Fatal("the same seed gives another text")
		}
		seen[token] = true
	}
	if len(seen) != 95 {
		t.Errorf("%d of 95 characters occur", len(seen))
	}
	same := 0
	for i := range 1000 {
		if generatedToken(1, i) == generatedToken(2, i) {
			same++
		}
	}
	if same > 50 {
		t.Errorf("two seeds share %d of 1000 characters, about 11 are expected", same)
	}
}

func TestChatPrompt(t *testing.T) {
	got := chatPrompt([]message{{"system", "be good"}, {"user", "hi"}})
	if want := "system: be good\nuser: hi\nassistant:"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
