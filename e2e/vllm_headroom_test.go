package e2e

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"
)

// vllmHeadroom asks for the live load ratio on a real vLLM, which takes most of an hour.
var vllmHeadroom = flag.Bool("vllm.headroom", false, "see how far the live load ratio is off on a real vLLM, for about 40 minutes of a quiet machine")

const (
	// vllmMixLoad is how long a mix is held at its knee: the window that a mix is seen in, and a minute.
	vllmMixLoad = 6 * time.Minute
	// vllmMixRead is the end of it, over which the ratio is looked at.
	vllmMixRead = time.Minute
)

// vllmClasses are lengths in tokens, vllmMixes requests of each class beside each other.
var (
	vllmClasses = map[string]string{"chat": "prompt=128,output=32", "reading": "prompt=700,output=16", "writing": "prompt=32,output=128"}
	vllmMixes   = []map[string]int{{"chat": 12, "reading": 1, "writing": 4}, {"chat": 6, "reading": 4, "writing": 2}}
)

// TestHeadroomOnVLLM: twice a curve of three classes and, searched in turn with
// them, the knee of a mix, to which it is then raised: the load ratio should be 1 there.
func TestHeadroomOnVLLM(t *testing.T) {
	if !*vllmHeadroom {
		t.Skip("the live load ratio on a real vLLM is judged with -args -vllm.headroom, see CONTRIBUTING.md")
	}
	if os.Getenv("E2E_VLLM_DIR") == "" || os.Getenv("E2E_VLLM_SERVE") == "" {
		t.Skip("no real vLLM to test against: set E2E_VLLM_DIR and E2E_VLLM_SERVE, see CONTRIBUTING.md")
	}
	address := freeAddress(t)
	v, _ := startSearchedVLLM(t, address, 8)
	for i, mix := range vllmMixes {
		name := fmt.Sprintf("mix %d", i+1)
		load := []string{"--slo=ttft:p90:1s"}
		for _, class := range slices.Sorted(maps.Keys(mix)) {
			load = append(load, fmt.Sprintf("--class=%s:%s,weight=%d", class, vllmClasses[class], mix[class]))
		}
		search := newKneeSearch(t, v.url, append([]string{"--mix", "--seed=" + strconv.Itoa(10+i)}, load...)...)
		begin := time.Now()
		p := search.toTheEnd(vllmSearchLimit)
		t.Logf("%s: the search took %s\n%s", name, time.Since(begin).Round(time.Second), p.stdout.String())
		knee := mixKnee(t, search.curve)

		plain := serve(t, v.url, "--curve.file="+search.curve, "--gpu.nvml=off")
		corrected := serve(t, v.url, "--curve.file="+search.curve, "--gpu.nvml=off", "--curve.correction=apply")
		p = start(t, nil, append([]string{"probe", "--engine.url=" + v.url, "--gpu.nvml=off", "--seed=" + strconv.Itoa(20+i),
			fmt.Sprintf("--rate=%.4f", knee.rate), "--warmup=10s", "--duration=" + vllmMixLoad.String()}, load...)...)
		time.Sleep(vllmMixLoad + 10*time.Second - vllmMixRead)
		var asIs, applied []float64
		var last replica
		for end := time.Now().Add(vllmMixRead); time.Now().Before(end); time.Sleep(2 * time.Second) {
			asIs = append(asIs, curveLoad(t, plain, &last))
			applied = append(applied, curveLoad(t, corrected, &last))
		}
		if status := p.status(vllmMixLoad); status != 0 && status != 1 {
			t.Errorf("%s: the load ended with status %d: %s", name, status, lastLine(p))
		}
		slices.Sort(asIs)
		slices.Sort(applied)
		middle := len(asIs) / 2
		t.Logf("%s at its knee of %.4g (%.4g to %.4g): load ratio %.3f (%.3f to %.3f in a minute); the engine is %v times as slow as its curve, with that %.3f; all constraints: %s\n%s",
			name, knee.rate, knee.low, knee.high, asIs[middle], asIs[0], asIs[len(asIs)-1], value(last.Curve.Correction.Factor), applied[middle], loads(last.LoadRatio), p.stdout.String())
		if r := asIs[middle]; !(r >= 0.85 && r <= 1.2) {
			t.Errorf("%s: load ratio %.3f at its knee, want 0.85 to 1.2", name, r)
		}
		plain.kill()
		corrected.kill()
	}
	v.kill()
}

// curveLoad is the load ratio of the curve by a sidecar's only replica, which is left in r.
func curveLoad(t *testing.T, s *sidecar, r *replica) float64 {
	t.Helper()
	h, err := getHeadroom(s.url)
	if err != nil {
		t.Fatal(err)
	}
	*r = onlyReplica(t, h)
	ratio := r.LoadRatio["curve"]
	if ratio == nil || !r.Curve.Valid {
		t.Fatalf("no load ratio of the curve: %q", r.Reasons)
	}
	return *ratio
}

// mixKnee is the knee of the only mix of a curve file.
func mixKnee(t *testing.T, path string) measuredKnee {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var c struct {
		Mixes []curveStudy
	}
	if err := json.Unmarshal(b, &c); err != nil {
		t.Fatal(err)
	}
	if len(c.Mixes) != 1 {
		t.Fatalf("%s has %d mixes, want 1", path, len(c.Mixes))
	}
	k, known := c.Mixes[0].measured()
	if !known {
		t.Fatalf("%s: the mix has no knee: %s", path, c.Mixes[0].Status)
	}
	return k
}
