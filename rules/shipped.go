package rules

import (
	"embed"
	"io/fs"
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

//go:generate go test -count=1 -run TestDocumentation . -update

// shipped are the rule files that are built in.
//
//go:embed sidecar/*.yml
var shipped embed.FS

// shippedFiles returns their names, sorted.
func shippedFiles() []string {
	// The pattern is constant and good, so there is no error to return.
	files, _ := fs.Glob(shipped, "sidecar/*.yml")
	slices.Sort(files)
	return files
}

// ShippedMetrics describes what the shipped rule files record, in their order.
func ShippedMetrics() ([]Metric, error) {
	c, err := Config{Shipped: true}.withDefaults()
	if err != nil {
		return nil, err
	}
	set, err := load(c)
	if err != nil {
		return nil, err
	}
	var all []Metric
	at := map[string]int{}
	for _, file := range set.files {
		for _, g := range set.groups[file].Groups {
			for _, r := range g.Rules {
				i, known := at[r.Record]
				if !known {
					i = len(all)
					at[r.Record] = i
					all = append(all, Metric{Name: r.Record, Help: set.help[r.Record], Counter: kindOf(r.Record) == prometheus.CounterValue})
				}
				for _, label := range slices.Sorted(maps.Keys(r.Labels)) {
					if !slices.Contains(all[i].Labels, label) {
						all[i].Labels = append(all[i].Labels, label)
					}
				}
			}
		}
	}
	return all, nil
}

// Files returns the shipped rule files.
func Files() fs.FS {
	// The folder is named in the pattern above, so there is no error to return.
	files, _ := fs.Sub(shipped, "sidecar")
	return files
}
