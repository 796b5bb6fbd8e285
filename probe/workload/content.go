package workload

import "math/bits"

// content is what a prompt is made of: pieces of endless streams of tokens,
// each named by a key. Equal keys are equal tokens, so that sharing a prefix
// is sharing pieces.
type content []piece

// piece is the first length tokens of the stream of a key.
type piece struct {
	key    uint64
	length int
}

// The domains keep streams of different uses apart.
const (
	domainRequest uint64 = iota + 1
	domainPrefix
	domainAnswer
	domainBlock
	domainArrival
	domainLengths
	domainSession
	domainSlot
	domainClone
	domainThin
)

// mix scatters the bits of x (the finaliser of splitmix64, Steele et al.
// 2014). It is a bijection: different numbers stay different.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// streamKey names stream number n of a domain; for one seed and domain,
// different numbers give different keys.
func streamKey(seed, domain, n uint64) uint64 { return mix(mix(mix(seed)^domain) + n) }

// uniform turns a key into a number from 0 to below 1.
func uniform(key uint64) float64 { return float64(mix(key)>>11) / (1 << 53) }

// Vocabulary is the token ids that prompts are made of.
type Vocabulary struct {
	// First and Count are a range of ids; IDs, when given, are taken instead.
	First, Count int
	IDs          []int
}

// Safe bounds of token ids: below are special tokens and single bytes, above
// may be added tokens, and smaller vocabularies end.
const (
	safeFirst = 1000
	safeEnd   = 30000
)

// SafeVocabulary returns ids that are ordinary tokens in a vocabulary of a
// size; a size of 0 is not known and counts as at least 30,000. Both ends of a
// small vocabulary, where special tokens lie, are left out.
func SafeVocabulary(size int) Vocabulary {
	first, end := safeFirst, safeEnd
	if size > 0 {
		first = min(first, size/8)
		end = min(end, size-size/16)
	}
	return Vocabulary{First: first, Count: max(end-first, 1)}
}

func (v Vocabulary) size() int {
	if len(v.IDs) > 0 {
		return len(v.IDs)
	}
	return max(v.Count, 1)
}

// MakeTokens fills Tokens with PromptTokens ids, in the memory that Tokens
// has. Prompts of one source differ within their first tokens (five with
// 29,000 ids, 16 with 16 ids), but for what they share by design.
func (r *Request) MakeTokens(v Vocabulary) {
	ids := r.Tokens[:0]
	if cap(ids) < r.PromptTokens {
		ids = make([]int, 0, r.PromptTokens)
	}
	size := v.size()
	for _, p := range r.content {
		ids = appendStream(ids, p, size)
	}
	if len(v.IDs) > 0 {
		for i, n := range ids {
			ids[i] = v.IDs[n]
		}
	} else {
		for i := range ids {
			ids[i] += v.First
		}
	}
	r.Tokens = ids
}

// appendStream appends the numbers of a piece, each from 0 to below size. The
// first ones are the digits of the key, so that different keys differ there for sure.
func appendStream(dst []int, p piece, size int) []int {
	left := p.length
	if size > 1 {
		n := uint64(size)
		for rest := p.key; left > 0 && rest > 0; left-- {
			dst = append(dst, int(rest%n))
			rest /= n
		}
		// As many digits for every key, so that where digits end does not depend on it.
		for i := p.length - left; left > 0 && i < digits(n); i++ {
			dst = append(dst, 0)
			left--
		}
	}
	state := p.key
	for ; left > 0; left -= 2 {
		state += 0x9e3779b97f4a7c15
		x := mix(state)
		dst = append(dst, scale(uint32(x), size))
		if left > 1 {
			dst = append(dst, scale(uint32(x>>32), size))
		}
	}
	return dst
}

// digits is how many digits a 64-bit number has in base n.
func digits(n uint64) int {
	count := 0
	for top := ^uint64(0); top > 0; top /= n {
		count++
	}
	return count
}

// scale maps 32 random bits to a number below size.
func scale(x uint32, size int) int {
	high, _ := bits.Mul64(uint64(x)<<32, uint64(size))
	return int(high)
}
