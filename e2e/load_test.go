package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// modelName asks an engine for the name of its model.
func modelName(t *testing.T, url string) string {
	t.Helper()
	var models struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := json.Unmarshal(mustGet(t, url+"/v1/models"), &models); err != nil || len(models.Data) == 0 {
		t.Fatalf("no model at %s: %v", url, err)
	}
	return models.Data[0].ID
}

// streams has no time limit of its own: a stream lasts as long as its test.
var streams = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}

// stream asks for a streamed completion of an exact length. The prompt is of
// token ids, each request's its own, so that no prefix cache shortens it.
func stream(ctx context.Context, url, model string, promptTokens, outputTokens, salt int) (io.ReadCloser, error) {
	prompt := make([]int, promptTokens)
	for i := range prompt {
		prompt[i] = 10 + (i*7+salt*13+i*salt)%200
	}
	body, err := json.Marshal(map[string]any{
		"model": model, "prompt": prompt, "stream": true,
		"max_tokens": outputTokens, "min_tokens": outputTokens, "ignore_eos": true,
	})
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := streams.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 500))
		return nil, fmt.Errorf("completion answered %s: %s", resp.Status, text)
	}
	return resp.Body, nil
}

// openStream returns a stream whose first chunk has arrived.
func openStream(t *testing.T, url, model string, promptTokens, outputTokens int) io.ReadCloser {
	t.Helper()
	body, err := stream(t.Context(), url, model, promptTokens, outputTokens, 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(body).ReadString('\n'); err != nil {
		t.Fatalf("first chunk: %v", err)
	}
	return body
}

// clients is a number of requests under way at once.
type clients struct {
	cancel context.CancelFunc
	done   sync.WaitGroup
	mutex  sync.Mutex
	failed []string
}

// send starts n requests at once; stop or wait must follow.
func send(t *testing.T, url, model string, n, promptTokens, outputTokens int) *clients {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	c := &clients{cancel: cancel}
	for i := range n {
		c.done.Go(func() {
			err := readAll(ctx, url, model, promptTokens, outputTokens, i+1)
			if err != nil && ctx.Err() == nil {
				c.mutex.Lock()
				defer c.mutex.Unlock()
				c.failed = append(c.failed, err.Error())
			}
		})
	}
	t.Cleanup(c.leave)
	return c
}

func readAll(ctx context.Context, url, model string, promptTokens, outputTokens, salt int) error {
	body, err := stream(ctx, url, model, promptTokens, outputTokens, salt)
	if err != nil {
		return err
	}
	defer body.Close()
	text, err := io.ReadAll(body)
	if err != nil {
		return err
	}
	if !strings.HasSuffix(strings.TrimSpace(string(text)), "[DONE]") {
		return fmt.Errorf("a stream ended without [DONE]: %.200s", text)
	}
	return nil
}

// leave makes all clients go away in the middle of their requests.
func (c *clients) leave() {
	c.cancel()
	c.done.Wait()
}

// wait waits until every request has been answered.
func (c *clients) wait(t *testing.T) {
	t.Helper()
	c.done.Wait()
	for _, f := range c.failed {
		t.Errorf("request: %s", f)
	}
}
