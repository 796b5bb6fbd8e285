package deploy

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	resource "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	clientgo "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// manifests is what kustomize makes of an overlay, decoded.
type manifests struct {
	deployment *apps.Deployment
	monitor    *monitoring.PodMonitor
	claim      *resource.ResourceClaimTemplate
}

// strict returns a decoder that refuses fields which the types do not have.
func strict(t *testing.T) runtime.Decoder {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgo.AddToScheme, monitoring.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
}

// build runs kustomize on the folder named of deploy/kubernetes.
func build(t *testing.T, files filesys.FileSystem, folder string) manifests {
	t.Helper()
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(files, folder)
	if err != nil {
		t.Fatalf("kustomize %s: %v", folder, err)
	}
	var result manifests
	for _, resource := range resources.Resources() {
		document, err := resource.AsYAML()
		if err != nil {
			t.Fatal(err)
		}
		object, _, err := strict(t).Decode(document, nil, nil)
		if err != nil {
			t.Fatalf("%v\n%s", err, document)
		}
		result.set(t, object)
	}
	if result.deployment == nil {
		t.Fatal("no Deployment")
	}
	return result
}

func (m *manifests) set(t *testing.T, object runtime.Object) {
	t.Helper()
	switch object := object.(type) {
	case *apps.Deployment:
		m.deployment = object
	case *monitoring.PodMonitor:
		m.monitor = object
	case *resource.ResourceClaimTemplate:
		m.claim = object
	default:
		t.Fatalf("a test for %T is missing", object)
	}
}

// overlay returns deploy/kubernetes in memory with an overlay of the example
// engine and the components named, in the folder "overlay".
func overlay(t *testing.T, components ...string) filesys.FileSystem {
	t.Helper()
	files := filesys.MakeFsInMemory()
	source := os.DirFS(filepath.Join(root, "deploy/kubernetes"))
	err := fs.WalkDir(source, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := fs.ReadFile(source, path)
		if err != nil {
			return err
		}
		return files.WriteFile(path, content)
	})
	if err != nil {
		t.Fatal(err)
	}
	kustomization := "resources: [engine.yaml]\ncomponents:\n"
	for _, component := range components {
		kustomization += "  - ../" + component + "\n"
	}
	engine, err := files.ReadFile("example/engine.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{"kustomization.yaml": []byte(kustomization), "engine.yaml": engine} {
		if err := files.WriteFile("overlay/"+name, content); err != nil {
			t.Fatal(err)
		}
	}
	return files
}

func named(containers []core.Container, name string) *core.Container {
	i := slices.IndexFunc(containers, func(c core.Container) bool { return c.Name == name })
	if i < 0 {
		return nil
	}
	return &containers[i]
}

func TestExample(t *testing.T) {
	built := build(t, filesys.MakeFsOnDisk(), filepath.Join(root, "deploy/kubernetes/example"))
	pod := built.deployment.Spec.Template.Spec
	sidecar := named(pod.InitContainers, "headroom")
	if sidecar == nil {
		t.Fatalf("no init container headroom in %+v", pod.InitContainers)
	}
	if sidecar.RestartPolicy == nil || *sidecar.RestartPolicy != core.ContainerRestartPolicyAlways {
		t.Error("an init container that does not restart always is no sidecar: the engine would never start")
	}
	if want := "registry.example.com/headroom_exporter:1"; sidecar.Image != want {
		t.Errorf("image %q, want %q", sidecar.Image, want)
	}
	if len(pod.Containers) != 1 || named(pod.Containers, "engine") == nil {
		t.Errorf("containers %+v, want the engine alone", pod.Containers)
	}
	checkSidecar(t, sidecar)
	if built.monitor == nil {
		t.Fatal("no PodMonitor")
	}
	checkMonitor(t, built.monitor, built.deployment)
}

func TestPlainContainer(t *testing.T) {
	plain := build(t, overlay(t, "plain-container"), "overlay").deployment.Spec.Template.Spec
	if len(plain.InitContainers) != 0 {
		t.Errorf("init containers %+v, want none", plain.InitContainers)
	}
	container := named(plain.Containers, "headroom")
	if container == nil || named(plain.Containers, "engine") == nil {
		t.Fatalf("containers %+v, want the engine and headroom", plain.Containers)
	}
	checkSidecar(t, container)
	// The two differ in nothing else.
	native := named(build(t, overlay(t, "native-sidecar"), "overlay").deployment.Spec.Template.Spec.InitContainers, "headroom")
	native.RestartPolicy = nil
	if diff := cmp.Diff(native, container); diff != "" {
		t.Errorf("the plain container differs from the sidecar (-sidecar +plain):\n%s", diff)
	}
}

func TestSharedGPU(t *testing.T) {
	built := build(t, overlay(t, "native-sidecar", "shared-gpu"), "overlay")
	pod := built.deployment.Spec.Template.Spec
	if built.claim == nil || len(pod.ResourceClaims) != 1 || pod.ResourceClaims[0].ResourceClaimTemplateName == nil ||
		*pod.ResourceClaims[0].ResourceClaimTemplateName != built.claim.Name {
		t.Fatalf("the pod's claims %+v do not name the template %+v", pod.ResourceClaims, built.claim)
	}
	for _, container := range []*core.Container{named(pod.InitContainers, "headroom"), named(pod.Containers, "engine")} {
		if claims := container.Resources.Claims; len(claims) != 1 || claims[0].Name != pod.ResourceClaims[0].Name {
			t.Errorf("%s has the claims %+v, want the pod's", container.Name, claims)
		}
		if gpus, ok := container.Resources.Limits["nvidia.com/gpu"]; ok {
			t.Errorf("%s holds %s more GPUs by the device plugin", container.Name, &gpus)
		}
	}
	checkSidecar(t, named(pod.InitContainers, "headroom"))
}

// A Deployment that runs no engine gets no sidecar.
func TestOtherDeployment(t *testing.T) {
	files := overlay(t, "native-sidecar")
	engine, err := files.ReadFile("overlay/engine.yaml")
	if err != nil {
		t.Fatal(err)
	}
	object, _, err := strict(t).Decode(engine, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	other := object.(*apps.Deployment)
	other.Labels["app.kubernetes.io/component"] = "router"
	document, err := runtime.Encode(clientgo.Codecs.LegacyCodec(apps.SchemeGroupVersion), other)
	if err != nil {
		t.Fatal(err)
	}
	if err := files.WriteFile("overlay/engine.yaml", document); err != nil {
		t.Fatal(err)
	}
	if got := build(t, files, "overlay").deployment.Spec.Template.Spec.InitContainers; len(got) != 0 {
		t.Errorf("a router got %+v", got)
	}
}

// checkSidecar holds the container to what the "restricted" Pod Security
// Standard asks for, and to what keeps the engine beside it unharmed.
func checkSidecar(t *testing.T, container *core.Container) {
	t.Helper()
	security := container.SecurityContext
	if security == nil {
		t.Fatal("no security context")
	}
	yes, no, user := true, false, int64(65532)
	want := &core.SecurityContext{
		RunAsNonRoot: &yes, RunAsUser: &user, RunAsGroup: &user,
		AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes,
		Capabilities:   &core.Capabilities{Drop: []core.Capability{"ALL"}},
		SeccompProfile: &core.SeccompProfile{Type: core.SeccompProfileTypeRuntimeDefault},
	}
	if diff := cmp.Diff(want, security); diff != "" {
		t.Errorf("security context (-want +got):\n%s", diff)
	}
	if container.ReadinessProbe != nil {
		t.Error("a readiness probe would take the engine out of its Service")
	}
	if container.StartupProbe != nil {
		t.Error("a startup probe would hold the engine back")
	}
	if probe := container.LivenessProbe; probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Path != "/-/healthy" {
		t.Errorf("liveness probe %+v, want one of /-/healthy", probe)
	}
	for _, resource := range []core.ResourceName{core.ResourceCPU, core.ResourceMemory} {
		request, limit := container.Resources.Requests[resource], container.Resources.Limits[resource]
		if request.IsZero() || request.Cmp(limit) != 0 {
			t.Errorf("%s: request %s, limit %s: a Guaranteed pod would not stay one", resource, &request, &limit)
		}
	}
	if gpus, ok := container.Resources.Limits["nvidia.com/gpu"]; ok {
		t.Errorf("asks for %s GPUs of its own", &gpus)
	}
	checkFlags(t, container.Args)
	checkStorage(t, container)
	if limit := container.Resources.Limits.Memory().Value(); memoryLimit(t, container.Env) >= limit {
		t.Errorf("GOMEMLIMIT is not below the memory limit of %d bytes", limit)
	}
}

// checkStorage fails unless the rules' directory is where the one writable
// volume is mounted.
func checkStorage(t *testing.T, container *core.Container) {
	t.Helper()
	if len(container.VolumeMounts) != 1 || container.VolumeMounts[0].ReadOnly {
		t.Fatalf("mounts %+v, want one that may be written", container.VolumeMounts)
	}
	if want := "--storage.path=" + container.VolumeMounts[0].MountPath; !slices.Contains(container.Args, want) {
		t.Errorf("arguments %q, want %s among them", container.Args, want)
	}
}

// checkMonitor matches the PodMonitor with the pods that it is to find.
func checkMonitor(t *testing.T, monitor *monitoring.PodMonitor, deployment *apps.Deployment) {
	t.Helper()
	if monitor.Namespace != deployment.Namespace {
		t.Errorf("PodMonitor in namespace %q, pods in %q", monitor.Namespace, deployment.Namespace)
	}
	template := deployment.Spec.Template
	for key, value := range monitor.Spec.Selector.MatchLabels {
		if template.Labels[key] != value {
			t.Errorf("PodMonitor selects %s=%s, pods have %q", key, value, template.Labels[key])
		}
	}
	var ports, scraped []string
	for _, container := range slices.Concat(template.Spec.InitContainers, template.Spec.Containers) {
		for _, port := range container.Ports {
			ports = append(ports, port.Name)
		}
	}
	for _, endpoint := range monitor.Spec.PodMetricsEndpoints {
		if endpoint.Port == nil {
			t.Fatal("an endpoint without a port name")
		}
		scraped = append(scraped, *endpoint.Port)
	}
	slices.Sort(ports)
	slices.Sort(scraped)
	if diff := cmp.Diff(ports, scraped); diff != "" {
		t.Errorf("ports of the pod and of the PodMonitor (-pod +monitor):\n%s", diff)
	}
}

// The strict decoder refuses what it is trusted to refuse.
func TestStrictDecoderSees(t *testing.T) {
	for name, document := range map[string]string{
		"PodMonitor": "apiVersion: monitoring.coreos.com/v1\nkind: PodMonitor\nspec:\n  podMetricsEndpoints: [{intervall: 5s}]\n",
		"Deployment": "apiVersion: apps/v1\nkind: Deployment\nspec:\n  template: {spec: {initContainers: [{restartPolcy: Always}]}}\n",
	} {
		if _, _, err := strict(t).Decode([]byte(document), nil, nil); err == nil {
			t.Errorf("%s with a misspelt field is accepted", name)
		}
	}
}
