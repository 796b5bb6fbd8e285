package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// askOpenAI runs the openai client's script against a server and returns
// what it found, as decoded JSON.
func askOpenAI(t *testing.T, url, modelName string, maxModelLen int) map[string]any {
	t.Helper()
	node := tool(t, "node")
	if _, err := os.Stat(filepath.Join("openai", "node_modules", "openai")); err != nil {
		install := exec.Command(tool(t, "npm"), "ci", "--no-fund", "--no-audit")
		install.Dir = "openai"
		if out, err := install.CombinedOutput(); err != nil {
			missing(t, "installing the openai package failed: "+err.Error()+": "+string(out))
		}
	}
	script := exec.Command(node, "client.mjs", url, modelName, strconv.Itoa(maxModelLen))
	script.Dir = "openai"
	out, err := script.Output()
	if err != nil {
		if exit, ok := err.(*exec.ExitError); ok {
			t.Fatalf("client.mjs: %v\n%s", err, exit.Stderr)
		}
		t.Fatalf("client.mjs: %v", err)
	}
	var found map[string]any
	if err := json.Unmarshal(out, &found); err != nil {
		t.Fatalf("client.mjs printed no JSON: %v: %s", err, out)
	}
	return found
}

// vllmAnswers is what the same script found on a real vLLM 0.32.0; TestVLLM
// holds it against one again.
func vllmAnswers(t *testing.T, modelName string, maxModelLen int) map[string]any {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "openai-vllm-0.32.json"))
	if err != nil {
		t.Fatal(err)
	}
	var want map[string]any
	if err := json.Unmarshal(text, &want); err != nil {
		t.Fatal(err)
	}
	models := want["models"].(map[string]any)
	models["ids"], models["max_model_len"] = []any{modelName}, float64(maxModelLen)
	return want
}

func TestOpenAIClientStreamsFromTheSimulatorAsFromVLLM(t *testing.T) {
	t.Parallel()
	engine := simulate(t, "--load=off")
	var models struct {
		Data []struct {
			ID          string `json:"id"`
			MaxModelLen int    `json:"max_model_len"`
		} `json:"data"`
	}
	if err := json.Unmarshal(mustGet(t, engine.url+"/v1/models"), &models); err != nil || len(models.Data) != 1 {
		t.Fatalf("models: %v, %+v", err, models)
	}
	model := models.Data[0]
	got := askOpenAI(t, engine.url, model.ID, model.MaxModelLen)
	if diff := cmp.Diff(vllmAnswers(t, model.ID, model.MaxModelLen), got); diff != "" {
		t.Errorf("the simulator's answers differ from vLLM's (-vLLM +simulator):\n%s", diff)
	}
}
