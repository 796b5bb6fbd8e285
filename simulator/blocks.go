package simulator

// blockPool is the KV cache of one rank as vLLM V1 keeps it: blocks with a
// reference count, and one list of the free ones in the order in which they
// are taken. A free block keeps its content, and can be found again by its
// hash, until it is taken for something else.
type blockPool struct {
	blocks []block
	free   int
	byHash map[uint64]int32
}

// block 0 is the null block: it is never given out, and its links are the
// head (next) and the tail (previous) of the list of free blocks.
type block struct {
	next, previous int32
	references     int32
	hash           uint64
}

const nullBlock int32 = 0

func newBlockPool(n int) *blockPool {
	p := &blockPool{blocks: make([]block, n), free: n - 1, byHash: make(map[uint64]int32)}
	for i := range p.blocks {
		p.blocks[i].next = int32((i + 1) % n)
		p.blocks[i].previous = int32((i + n - 1) % n)
	}
	return p
}

// usage is the share of blocks in use, 0..1.
func (p *blockPool) usage() float64 {
	return 1 - float64(p.free)/float64(len(p.blocks)-1)
}

func (p *blockPool) unlink(id int32) {
	b := &p.blocks[id]
	p.blocks[b.previous].next = b.next
	p.blocks[b.next].previous = b.previous
	p.free--
}

// take appends n free blocks to the list, the longest free first. The caller
// has seen that there are so many.
func (p *blockPool) take(list []int32, n int) []int32 {
	for range n {
		id := p.blocks[nullBlock].next
		p.unlink(id)
		b := &p.blocks[id]
		if b.hash != 0 {
			delete(p.byHash, b.hash)
			b.hash = 0
		}
		b.references = 1
		list = append(list, id)
	}
	return list
}

// release gives up blocks of one sequence. The last go first, so that what is
// forgotten first is the end of the sequence and not the prefix that others may share.
func (p *blockPool) release(list []int32) {
	head := &p.blocks[nullBlock]
	for i := len(list) - 1; i >= 0; i-- {
		id := list[i]
		b := &p.blocks[id]
		if b.references--; b.references > 0 {
			continue
		}
		b.next, b.previous = nullBlock, head.previous
		p.blocks[head.previous].next = id
		head.previous = id
		p.free++
	}
}

// cached returns the blocks that hold a chain of hashes, up to the first that is not there.
func (p *blockPool) cached(list []int32, hashes []uint64) []int32 {
	for _, h := range hashes {
		id, ok := p.byHash[h]
		if !ok {
			break
		}
		list = append(list, id)
	}
	return list
}

// freeAmong is how many of the blocks are free: sharing them takes them from the free ones.
func (p *blockPool) freeAmong(list []int32) int {
	n := 0
	for _, id := range list {
		if p.blocks[id].references == 0 {
			n++
		}
	}
	return n
}

// share takes references to cached blocks.
func (p *blockPool) share(list []int32) {
	for _, id := range list {
		b := &p.blocks[id]
		if b.references == 0 {
			p.unlink(id)
		}
		b.references++
	}
}

// remember lets a full block be found by its hash. A second block of the same
// content stays unknown.
func (p *blockPool) remember(id int32, hash uint64) {
	if _, known := p.byHash[hash]; known || p.blocks[id].hash != 0 {
		return
	}
	p.blocks[id].hash = hash
	p.byHash[hash] = id
}

// forget empties the prefix cache.
func (p *blockPool) forget() {
	clear(p.byHash)
	for i := range p.blocks {
		p.blocks[i].hash = 0
	}
}

// mix is the finaliser of SplitMix64: a bijection whose outputs look independent.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// hashText starts a chain of hashes.
func hashText(s string) uint64 {
	h := uint64(len(s))
	for i := range len(s) {
		h = mix(h ^ uint64(s[i]))
	}
	return h
}

// hashTokens is the hash of a block of tokens that follows the block with hash parent; never 0.
func hashTokens(parent uint64, tokens []int) uint64 {
	h := mix(parent)
	for _, t := range tokens {
		h = mix(h ^ uint64(t))
	}
	return max(h, 1)
}

// hashUnique is the hash of a block whose content no other sequence has; never 0.
func hashUnique(parent, sequence uint64) uint64 {
	return max(mix(mix(parent)^mix(^sequence)), 1)
}
