package simulator

import (
	"strings"
	"unicode/utf8"
)

// The tokenizer has one token for each byte, after four special ones. Its
// vocabulary is as large as Llama 3's, which the presets stand for; the
// tokens beyond the bytes have no text.
const (
	tokenEOS       = 2
	firstByteToken = 4
	vocabulary     = 128256
)

var specialTokens = [firstByteToken]string{"<unk>", "<s>", "</s>", "<pad>"}

// tokenize returns the token of every byte of the text.
func tokenize(text string) []int {
	tokens := make([]int, len(text))
	for i := range len(text) {
		tokens[i] = int(text[i]) + firstByteToken
	}
	return tokens
}

// detokenize returns the text of tokens; bytes that are no UTF-8 become U+FFFD.
func detokenize(tokens []int) string {
	var b strings.Builder
	for _, t := range tokens {
		switch {
		case t < 0:
		case t < firstByteToken:
			b.WriteString(specialTokens[t])
		case t < firstByteToken+256:
			b.WriteByte(byte(t - firstByteToken))
		}
	}
	text := b.String()
	if utf8.ValidString(text) {
		return text
	}
	return string([]rune(text))
}

// tokenString is a token as a byte-level BPE vocabulary spells it: printable
// characters stand for themselves, the other bytes for those from U+0100 on.
func tokenString(token int) string {
	switch {
	case token < 0 || token >= firstByteToken+256:
		return ""
	case token < firstByteToken:
		return specialTokens[token]
	}
	return string(byteRunes[token-firstByteToken])
}

// byteRunes is GPT-2's table of bytes to printable characters.
var byteRunes = func() (table [256]rune) {
	next := rune(256)
	for b := range table {
		if b >= '!' && b <= '~' || b >= 0xA1 && b <= 0xAC || b >= 0xAE {
			table[b] = rune(b)
			continue
		}
		table[b] = next
		next++
	}
	return table
}()

// message is one turn of a chat.
type message struct{ role, content string }

// chatPrompt applies the chat template: a line for each turn, and the
// assistant's open one.
func chatPrompt(messages []message) string {
	var b strings.Builder
	for _, m := range messages {
		b.WriteString(m.role)
		b.WriteString(": ")
		b.WriteString(m.content)
		b.WriteByte('\n')
	}
	b.WriteString("assistant:")
	return b.String()
}

// generatedToken is token number index of the text that a seed stands for: a
// printable ASCII character.
func generatedToken(seed uint64, index int) int {
	// The finaliser of SplitMix64 on a counter.
	x := seed + uint64(index+1)*0x9E3779B97F4A7C15
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	x ^= x >> 31
	const first, last = ' ', '~'
	return firstByteToken + first + int((x>>32)*(last-first+1)>>32)
}
