package simulator

// stage is where a request is in its life.
type stage uint8

const (
	stageNew      stage = iota
	stageFrontEnd       // accepted, not yet in the scheduler
	stageWaiting
	stageRunning
	stageEnded
)

// schedulerState is what the scheduler keeps of a request.
type schedulerState struct {
	stage stage
	rank  int
	// sequence numbers the requests of a scheduler.
	sequence uint64
	// generated tokens so far; computed tokens in the KV cache, and the most
	// there ever were: those below it are computed again after a preemption.
	generated, computed, everComputed int
	// scheduled tokens in the step that runs.
	scheduled int
	// blocks of the KV cache in order; the first len(hashes) at most are full.
	blocks []int32
	// hashes of the sequence's full blocks; remembered of them are known to the pool.
	hashes     []uint64
	remembered int
}

// promptTokens is the length of the prompt, however it is given.
func (r *Request) promptTokens() int {
	if r.Prompt != nil {
		return len(r.Prompt)
	}
	return r.PromptLength
}

// tokens is the length of the sequence: the prompt and what was generated.
func (r *Request) tokens() int { return r.promptTokens() + r.generated }

// extendHashes completes the hashes to those of all blocks that n tokens
// fill. The ids of generated tokens are not known here, so blocks with one
// are this sequence's own.
func (r *Request) extendHashes(n, blockSize int) {
	for i := len(r.hashes); i < n/blockSize; i++ {
		parent := uint64(0)
		if i > 0 {
			parent = r.hashes[i-1]
		} else if r.CacheSalt != "" {
			parent = hashText(r.CacheSalt)
		}
		if end := (i + 1) * blockSize; end <= len(r.Prompt) {
			r.hashes = append(r.hashes, hashTokens(parent, r.Prompt[end-blockSize:end]))
		} else {
			r.hashes = append(r.hashes, hashUnique(parent, r.sequence))
		}
	}
}

// finishReason is the reason that applies when all tokens are out.
func (r *Request) finishReason() FinishReason {
	if r.FinishReason == "" {
		return FinishLength
	}
	return r.FinishReason
}
