package main

import (
	"fmt"
	"strings"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

// tag is what all our dashboards have, so that each finds the others.
const tag = "headroom"

// board is a dashboard.
type board struct {
	uid, title, description string
	variables               []variable
	rows                    []row
}

// row is a title and what stands below it.
type row struct {
	title  string
	panels []panel
}

// file is its name in the folder of dashboards.
func (b board) file() string { return strings.TrimPrefix(b.uid, "headroom-") + ".json" }

func (b board) build(pages pages) (dashboard.Dashboard, error) {
	d := dashboard.NewDashboardBuilder(b.title).
		Uid(b.uid).
		Description(b.description).
		Tags([]string{tag}).
		Readonly().
		Tooltip(dashboard.DashboardCursorSyncCrosshair).
		Time("now-1h", "now").
		Refresh("30s").
		Link(dashboard.NewDashboardLinkBuilder("Headroom").
			Type(dashboard.DashboardLinkTypeDashboards).
			Tags([]string{tag}).
			Tooltip("The other dashboards, with the same choice and time").
			IncludeVars(true).KeepTime(true))
	for _, v := range b.variables {
		d.WithVariable(v.build())
	}
	id := uint32(0)
	for _, r := range b.rows {
		id++
		d.WithRow(dashboard.NewRowBuilder(r.title).Id(id))
		for _, p := range r.panels {
			for _, name := range p.runbooks {
				if pages[name] == 0 {
					return dashboard.Dashboard{}, fmt.Errorf("panel %q leads to the runbook %s, which is not there", p.title, name)
				}
			}
			id++
			d.WithPanel(p.build(id, pages))
		}
	}
	built, err := d.Build()
	if err != nil {
		return built, err
	}
	// The SDK hides every link in a menu, and gives no way not to.
	for i := range built.Links {
		built.Links[i].Placement = nil
	}
	for _, p := range built.Panels {
		if p.Panel == nil {
			continue
		}
		for i := range p.Panel.Links {
			p.Panel.Links[i].Placement = nil
		}
	}
	return built, nil
}

// datasource is the Prometheus that a person has chosen.
var datasource = common.DataSourceRef{Type: cog.ToPtr("prometheus"), Uid: cog.ToPtr("${datasource}")}

// variable is a choice at the top of a dashboard.
type variable struct {
	name, label, description string
	// values is a label_values query; empty for the data source.
	values string
}

// source chooses the Prometheus server.
var source = variable{name: "datasource", label: "Data source", description: "The Prometheus server that scrapes the exporters."}

// namespaces, pools and pods are the target labels of the pods that expose a metric.
func namespaces(metric string) variable {
	return variable{
		name: "namespace", label: "Namespace", description: "Namespaces of the pods.",
		values: "label_values(" + metric + ", namespace)",
	}
}

func pools(metric string) variable {
	return variable{
		name: "pool", label: "Pool", description: "Replicas that serve the same model in the same role, by the target label pool.",
		values: "label_values(" + metric + `{namespace=~"$namespace"}, pool)`,
	}
}

func pods(metric string) variable {
	return variable{
		name: "pod", label: "Pod", description: "Replicas, by pod.",
		values: "label_values(" + metric + `{namespace=~"$namespace", pool=~"$pool"}, pod)`,
	}
}

func (v variable) build() cog.Builder[dashboard.VariableModel] {
	if v.values == "" {
		return dashboard.NewDatasourceVariableBuilder(v.name).Label(v.label).Description(v.description).Type("prometheus")
	}
	return dashboard.NewQueryVariableBuilder(v.name).
		Label(v.label).Description(v.description).
		Datasource(datasource).
		Query(dashboard.StringOrMap{String: cog.ToPtr(v.values)}).
		Definition(v.values).
		Refresh(dashboard.VariableRefreshOnTimeRangeChanged).
		Sort(dashboard.VariableSortNaturalAsc).
		Multi(true).IncludeAll(true).AllValue(".*"). // where a label is absent too
		Current(dashboard.VariableOption{
			Text:  dashboard.StringOrArrayOfString{ArrayOfString: []string{"All"}},
			Value: dashboard.StringOrArrayOfString{ArrayOfString: []string{"$__all"}},
		})
}
