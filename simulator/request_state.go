package simulator

// stage is where a request is in its life.
type stage uint8

const (
	stageNew stage = iota
	stageFrontEnd
	stageWaiting
	stageRunning
	stageEnded
)

// schedulerState is what the scheduler keeps of a request.
type schedulerState struct {
	stage stage
	rank  int
}

// promptTokens is the length of the prompt, however it is given.
func (r *Request) promptTokens() int {
	if r.Prompt != nil {
		return len(r.Prompt)
	}
	return r.PromptLength
}
