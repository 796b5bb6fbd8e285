package engine

import "slices"

//go:generate go test -count=1 -run TestDocumentation . -update

// tables in the order of detection. Triton is known by names of its own, and
// before vLLM, whose names its page may hold too.
var tables = []*table{
	tritonTable(), vllmTable(), rayTable(), sglangTable(), trtllmTable(), tgiTable(), llamacppTable(),
}

// TypeNames lists the types of engine that can be read, sorted.
func TypeNames() []string { return namesOf(tables) }

func namesOf(tables []*table) []string {
	names := make([]string, 0, len(tables))
	for _, t := range tables {
		names = append(names, string(t.engine))
	}
	slices.Sort(names)
	return names
}

// Gives tells whether engines of the type can give what a Signal or a
// HistogramSignal of this name stands for, on any of their pages. What an
// Observation says is not Available and the type does not give will never
// come; the rest is missing now. Of an unknown type nobody can say never.
func (t Type) Gives(name string) bool {
	for _, table := range tables {
		if (t == TypeUnknown || table.engine == t) && table.gives(name) {
			return true
		}
	}
	return false
}

func (t *table) gives(name string) bool {
	for i := range t.rows {
		// Tokens in use follow from the share in use where the capacity is known.
		if s := t.rows[i].signal; s.String() == name || s == KVCacheUsage && name == KVCacheTokensUsed.String() {
			return true
		}
	}
	return slices.ContainsFunc(t.histograms, func(r histogramRow) bool { return r.signal.String() == name })
}
