package engine

import "strings"

// rayTable is vLLM's metrics as Ray Serve LLM exports them. Ray's node agent
// serves every replica of its node on one page, drops zero increments, and
// writes counters with and without _total.
func rayTable() *table {
	t := vllmTable()
	t.engine = TypeRay
	t.prefixes = []string{"ray_vllm:", "ray_vllm_"}
	t.replicaLabels = []string{"ReplicaId", "WorkerId"}
	t.routerLabel = ""
	// The start time on the page is the agent's, not the engine's.
	t.processStart = false
	t.defaultPort = ""
	t.infoPath = ""
	t.serverInfo, t.commandLine, t.defaults = nil, nil, nil
	for i := range t.rows {
		if !t.rows[i].kind.cumulative() {
			continue
		}
		for _, a := range t.rows[i].aliases {
			if short, ok := strings.CutSuffix(a.name, "_total"); ok {
				a.name = short
				t.rows[i].aliases = append(t.rows[i].aliases, a)
			}
		}
	}
	return t
}
