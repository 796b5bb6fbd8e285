package simulator

import (
	"context"
	"net/http"
)

// usage is the tokens of an answer that is not streamed.
type usage struct {
	PromptTokens            int  `json:"prompt_tokens"`
	TotalTokens             int  `json:"total_tokens"`
	CompletionTokens        int  `json:"completion_tokens"`
	PromptTokensDetails     *int `json:"prompt_tokens_details"`
	CompletionTokensDetails *int `json:"completion_tokens_details"`
}

// null is a member that the simulator never sets.
type null struct{}

// MarshalJSON implements json.Marshaler.
func (null) MarshalJSON() ([]byte, error) { return []byte("null"), nil }

type completionAnswer struct {
	ID                string             `json:"id"`
	Object            string             `json:"object"`
	Created           int64              `json:"created"`
	Model             string             `json:"model"`
	Choices           []completionChoice `json:"choices"`
	ServiceTier       null               `json:"service_tier"`
	SystemFingerprint string             `json:"system_fingerprint"`
	Usage             usage              `json:"usage"`
	KVTransferParams  null               `json:"kv_transfer_params"`
	ECTransferParams  null               `json:"ec_transfer_params"`
	Metrics           null               `json:"metrics"`
}

type completionChoice struct {
	Index          int          `json:"index"`
	Text           string       `json:"text"`
	Logprobs       null         `json:"logprobs"`
	FinishReason   FinishReason `json:"finish_reason"`
	StopReason     null         `json:"stop_reason"`
	TokenIDs       []int        `json:"token_ids"`
	PromptLogprobs null         `json:"prompt_logprobs"`
	PromptTokenIDs []int        `json:"prompt_token_ids"`
	RoutedExperts  null         `json:"routed_experts"`
}

type chatAnswer struct {
	ID                string       `json:"id"`
	Object            string       `json:"object"`
	Created           int64        `json:"created"`
	Model             string       `json:"model"`
	Choices           []chatChoice `json:"choices"`
	ServiceTier       null         `json:"service_tier"`
	SystemFingerprint string       `json:"system_fingerprint"`
	Usage             usage        `json:"usage"`
	PromptLogprobs    null         `json:"prompt_logprobs"`
	PromptTokenIDs    []int        `json:"prompt_token_ids"`
	PromptText        null         `json:"prompt_text"`
	KVTransferParams  null         `json:"kv_transfer_params"`
	ECTransferParams  null         `json:"ec_transfer_params"`
	Metrics           null         `json:"metrics"`
}

type chatChoice struct {
	Index         int          `json:"index"`
	Message       chatMessage  `json:"message"`
	Logprobs      null         `json:"logprobs"`
	FinishReason  FinishReason `json:"finish_reason"`
	StopReason    null         `json:"stop_reason"`
	TokenIDs      []int        `json:"token_ids"`
	RoutedExperts null         `json:"routed_experts"`
}

type chatMessage struct {
	Role         string `json:"role"`
	Content      string `json:"content"`
	Refusal      null   `json:"refusal"`
	Annotations  null   `json:"annotations"`
	Audio        null   `json:"audio"`
	FunctionCall null   `json:"function_call"`
	Reasoning    null   `json:"reasoning"`
}

// answer sends the whole text when it is made; nothing when the client went away.
func (a *api) answer(ctx context.Context, w http.ResponseWriter, g *generationRequest, gen *generation, id string, created int64) {
	for open := len(gen.sequences); open > 0; {
		if gen.wait(ctx) != nil {
			gen.abort()
			return
		}
		for _, s := range gen.sequences {
			if s.ended != "" {
				continue
			}
			if gen.take(s); s.ended != "" {
				open--
			}
		}
	}
	var u usage
	for _, s := range gen.sequences {
		u.PromptTokens += len(s.request.Prompt)
		u.CompletionTokens += s.sent
	}
	u.TotalTokens = u.PromptTokens + u.CompletionTokens
	if g.chat {
		writeJSON(w, http.StatusOK, a.chatAnswer(g, gen, id, created, u))
		return
	}
	writeJSON(w, http.StatusOK, a.completionAnswer(g, gen, id, created, u))
}

func (a *api) completionAnswer(g *generationRequest, gen *generation, id string, created int64, u usage) completionAnswer {
	answer := completionAnswer{
		ID: id, Object: "text_completion", Created: created, Model: a.cfg.ModelName,
		SystemFingerprint: a.fingerprint, Usage: u,
	}
	for _, s := range gen.sequences {
		c := completionChoice{Index: s.index, Text: string(s.appendText(nil, 0, s.sent)), FinishReason: s.ended}
		if g.returnTokenIDs {
			c.TokenIDs, c.PromptTokenIDs = s.tokenIDs(), s.request.Prompt
		}
		answer.Choices = append(answer.Choices, c)
	}
	return answer
}

func (a *api) chatAnswer(g *generationRequest, gen *generation, id string, created int64, u usage) chatAnswer {
	answer := chatAnswer{
		ID: id, Object: "chat.completion", Created: created, Model: a.cfg.ModelName,
		SystemFingerprint: a.fingerprint, Usage: u,
	}
	for _, s := range gen.sequences {
		c := chatChoice{
			Index:        s.index,
			Message:      chatMessage{Role: "assistant", Content: string(s.appendText(nil, 0, s.sent))},
			FinishReason: s.ended,
		}
		if g.returnTokenIDs {
			c.TokenIDs, answer.PromptTokenIDs = s.tokenIDs(), s.request.Prompt
		}
		answer.Choices = append(answer.Choices, c)
	}
	return answer
}

func (s *sequence) tokenIDs() []int {
	ids := make([]int, s.sent)
	for i := range ids {
		ids[i] = s.token(i)
	}
	return ids
}
