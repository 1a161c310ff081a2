// Go clients with our kinds in protobuf and CBOR, and over WebSocket: a typed client whose types marshal themselves, the
// metadata client, the dynamic client, and the WebSocket client of golang.org/x/net. It prints "done", or what is wrong.
//
// CBOR needs KUBE_FEATURE_ClientsAllowCBOR=true and KUBE_FEATURE_ClientsPreferCBOR=true in the environment.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/websocket"
	"google.golang.org/protobuf/encoding/protowire"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const protobuf = "application/vnd.kubernetes.protobuf"

var version = schema.GroupVersion{Group: "coordination.k8s.io", Version: "v1alpha3"}
var resource = version.WithResource("nodemaintenances")

// NodeMaintenance has the fields that this program uses, with the numbers of generated.proto.
type NodeMaintenance struct {
	metav1.TypeMeta
	metav1.ObjectMeta
	NodeSelector []byte
	Stage        string
	Reason       string
}

type NodeMaintenanceList struct {
	metav1.TypeMeta
	metav1.ListMeta
	Items []NodeMaintenance
}

func (m *NodeMaintenance) DeepCopyObject() runtime.Object     { c := *m; return &c }
func (m *NodeMaintenanceList) DeepCopyObject() runtime.Object { c := *m; return &c }
func (m *NodeMaintenance) Reset()                             { *m = NodeMaintenance{} }
func (m *NodeMaintenanceList) Reset()                         { *m = NodeMaintenanceList{} }

func field(out []byte, number protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(out, number, protowire.BytesType), value)
}

// Marshal writes every field, empty ones too, as generated Go code does.
func (m *NodeMaintenance) Marshal() ([]byte, error) {
	meta, err := m.ObjectMeta.Marshal()
	if err != nil {
		return nil, err
	}
	var spec []byte
	if m.NodeSelector != nil {
		spec = field(spec, 1, m.NodeSelector)
	}
	spec = field(field(spec, 2, []byte(m.Stage)), 4, []byte(m.Reason))
	return field(field(field(nil, 1, meta), 2, spec), 3, nil), nil
}

func (m *NodeMaintenanceList) Marshal() ([]byte, error) {
	return nil, fmt.Errorf("lists are only read")
}

// fields calls visit for every field of length-delimited type.
func fields(data []byte, visit func(protowire.Number, []byte) error) error {
	for len(data) > 0 {
		number, kind, n := protowire.ConsumeTag(data)
		if n < 0 {
			return protowire.ParseError(n)
		}
		data = data[n:]
		if kind != protowire.BytesType {
			n = protowire.ConsumeFieldValue(number, kind, data)
			if n < 0 {
				return protowire.ParseError(n)
			}
			data = data[n:]
			continue
		}
		value, n := protowire.ConsumeBytes(data)
		if n < 0 {
			return protowire.ParseError(n)
		}
		data = data[n:]
		if err := visit(number, value); err != nil {
			return err
		}
	}
	return nil
}

func (m *NodeMaintenance) Unmarshal(data []byte) error {
	return fields(data, func(number protowire.Number, value []byte) error {
		switch number {
		case 1:
			return m.ObjectMeta.Unmarshal(value)
		case 2:
			return fields(value, func(number protowire.Number, value []byte) error {
				switch number {
				case 1:
					m.NodeSelector = append([]byte{}, value...)
				case 2:
					m.Stage = string(value)
				case 4:
					m.Reason = string(value)
				}
				return nil
			})
		}
		return nil
	})
}

func (m *NodeMaintenanceList) Unmarshal(data []byte) error {
	return fields(data, func(number protowire.Number, value []byte) error {
		switch number {
		case 1:
			return m.ListMeta.Unmarshal(value)
		case 2:
			var item NodeMaintenance
			if err := item.Unmarshal(value); err != nil {
				return err
			}
			m.Items = append(m.Items, item)
		}
		return nil
	})
}

// recorder notes the media types of responses.
type recorder struct {
	next http.RoundTripper
	mu   *sync.Mutex
	seen map[string]int
}

func (r recorder) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := r.next.RoundTrip(request)
	if err == nil {
		r.mu.Lock()
		r.seen[response.Header.Get("Content-Type")]++
		r.mu.Unlock()
	}
	return response, err
}

func recorded(config *rest.Config) (*rest.Config, map[string]int) {
	config = rest.CopyConfig(config)
	seen, mu := map[string]int{}, &sync.Mutex{}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return recorder{next, mu, seen} })
	return config, seen
}

func must(err error, what string) {
	if err != nil {
		log.Fatalf("%s: %v", what, err)
	}
}

func check(holds bool, format string, arguments ...any) {
	if !holds {
		log.Fatalf(format, arguments...)
	}
}

func onlyMedia(seen map[string]int, prefix string) {
	for media := range seen {
		check(strings.HasPrefix(media, prefix), "a response in %q: %v", media, seen)
	}
	check(len(seen) > 0, "no response")
}

func next(events watch.Interface, kind watch.EventType) runtime.Object {
	select {
	case event, open := <-events.ResultChan():
		check(open && event.Type == kind, "expected %s, got %v %v", kind, event.Type, event.Object)
		return event.Object
	case <-time.After(30 * time.Second):
		log.Fatalf("no event, expected %s", kind)
		return nil
	}
}

// selector matches all nodes with a label, as a message: terms 1, expressions 1, key 1, operator 2.
func selector() []byte {
	expression := field(field(nil, 1, []byte("nowhere")), 2, []byte("Exists"))
	return field(nil, 1, field(nil, 1, expression))
}

func typed(ctx context.Context, config *rest.Config, name string) {
	config, seen := recorded(config)
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(version, &NodeMaintenance{}, &NodeMaintenanceList{})
	metav1.AddToGroupVersion(scheme, version)
	config.GroupVersion, config.APIPath = &version, "/apis"
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	config.ContentType, config.AcceptContentTypes = protobuf, protobuf
	client, err := rest.RESTClientFor(config)
	must(err, "typed client")

	one := metav1.ListOptions{FieldSelector: "metadata.name=" + name}
	list := func() *NodeMaintenanceList {
		found := &NodeMaintenanceList{}
		must(client.Get().Resource("nodemaintenances").VersionedParams(&one, metav1.ParameterCodec).Do(ctx).Into(found), "list")
		return found
	}
	watching := one
	watching.Watch, watching.ResourceVersion, watching.AllowWatchBookmarks = true, list().ResourceVersion, true
	events, err := client.Get().Resource("nodemaintenances").VersionedParams(&watching, metav1.ParameterCodec).Watch(ctx)
	must(err, "watch")
	defer events.Stop()

	wanted := &NodeMaintenance{Reason: "typed", NodeSelector: selector()}
	wanted.Name = name
	wanted.Labels = map[string]string{"a": "1", "b": ""}
	created := &NodeMaintenance{}
	must(client.Post().Resource("nodemaintenances").Body(wanted).Do(ctx).Into(created), "create")
	check(created.UID != "" && created.Generation == 1 && created.Stage == "Idle", "created %+v", created)
	check(created.Reason == "typed" && created.Labels["a"] == "1" && !created.CreationTimestamp.IsZero(), "created %+v", created)
	check(len(created.ManagedFields) == 1 && len(created.ManagedFields[0].FieldsV1.Raw) > 0, "managed %+v", created.ManagedFields)
	added := next(events, watch.Added).(*NodeMaintenance)
	check(added.UID == created.UID && added.Reason == "typed", "added %+v", added)
	found := list()
	check(len(found.Items) == 1 && found.Items[0].ResourceVersion == created.ResourceVersion, "list %+v", found)

	created.Reason = "changed"
	updated := &NodeMaintenance{}
	must(client.Put().Resource("nodemaintenances").Name(name).Body(created).Do(ctx).Into(updated), "update")
	check(updated.Generation == 2 && updated.Reason == "changed" && string(updated.NodeSelector) == string(created.NodeSelector),
		"updated %+v", updated)
	check(next(events, watch.Modified).(*NodeMaintenance).Reason == "changed", "modified")
	err = client.Put().Resource("nodemaintenances").Name(name).Body(created).Do(ctx).Error()
	check(apierrors.IsConflict(err), "stale update: %v", err)
	err = client.Get().Resource("nodemaintenances").Name(name + "-missing").Do(ctx).Error()
	check(apierrors.IsNotFound(err), "missing: %v", err)
	invalid := wanted.DeepCopyObject().(*NodeMaintenance)
	invalid.Name, invalid.Stage = name+"-invalid", "Never"
	err = client.Post().Resource("nodemaintenances").Body(invalid).Do(ctx).Error()
	check(apierrors.IsInvalid(err) && apierrors.HasStatusCause(err, metav1.CauseTypeFieldValueNotSupported), "invalid: %v", err)

	other := types.UID("other")
	options := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &other}}
	err = client.Delete().Resource("nodemaintenances").Name(name).Body(&options).Do(ctx).Error()
	check(apierrors.IsConflict(err), "delete of another: %v", err)
	options = *metav1.NewPreconditionDeleteOptions(string(created.UID))
	must(client.Delete().Resource("nodemaintenances").Name(name).Body(&options).Do(ctx).Error(), "delete")
	next(events, watch.Deleted)
	onlyMedia(seen, protobuf)
}

func dynamically(ctx context.Context, config *rest.Config, name string) {
	config, seen := recorded(config)
	client, err := dynamic.NewForConfig(config)
	must(err, "dynamic client")
	objects := client.Resource(resource)
	one := metav1.ListOptions{FieldSelector: "metadata.name=" + name}
	events, err := objects.Watch(ctx, one)
	must(err, "watch")
	defer events.Stop()
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": version.String(), "kind": "NodeMaintenance",
		"metadata": map[string]any{"name": name, "annotations": map[string]any{"text": "ü<>"}},
		"spec": map[string]any{"reason": "dynamic", "nodeSelector": map[string]any{"nodeSelectorTerms": []any{
			map[string]any{"matchExpressions": []any{map[string]any{"key": "nowhere", "operator": "Exists"}}}}}},
	}}
	created, err := objects.Create(ctx, object, metav1.CreateOptions{})
	must(err, "create")
	check(created.GetAnnotations()["text"] == "ü<>" && created.GetGeneration() == 1, "created %v", created)
	added := next(events, watch.Added).(*unstructured.Unstructured)
	check(added.GetUID() == created.GetUID(), "added %v", added)
	object.SetAnnotations(map[string]string{"applied": "yes"})
	applied, err := objects.Apply(ctx, name, object, metav1.ApplyOptions{FieldManager: "go", Force: true})
	must(err, "apply")
	check(applied.GetAnnotations()["applied"] == "yes" && len(applied.GetManagedFields()) == 2, "applied %v", applied)
	next(events, watch.Modified)
	list, err := objects.List(ctx, one)
	must(err, "list")
	check(len(list.Items) == 1, "list %v", list)
	_, err = objects.Create(ctx, object, metav1.CreateOptions{})
	check(apierrors.IsAlreadyExists(err), "duplicate: %v", err)
	must(objects.Delete(ctx, name, metav1.DeleteOptions{}), "delete")
	next(events, watch.Deleted)
	onlyMedia(seen, "application/cbor")
}

func metadataOnly(ctx context.Context, config *rest.Config, name string) {
	config, seen := recorded(config)
	client, err := metadata.NewForConfig(config)
	must(err, "metadata client")
	objects := client.Resource(resource)
	one := metav1.ListOptions{FieldSelector: "metadata.name=" + name}
	list, err := objects.List(ctx, one)
	must(err, "list of metadata")
	check(len(list.Items) == 1 && list.Items[0].Name == name && list.Items[0].Kind == "PartialObjectMetadata", "list %+v", list)
	got, err := objects.Get(ctx, name, metav1.GetOptions{})
	must(err, "metadata")
	check(got.UID == list.Items[0].UID && got.Annotations["keep"] == "yes", "got %+v", got)
	events, err := objects.Watch(ctx, one)
	must(err, "watch of metadata")
	defer events.Stop()
	check(next(events, watch.Added).(*metav1.PartialObjectMetadata).UID == got.UID, "added")
	onlyMedia(seen, protobuf)
}

func overWebSocket(config *rest.Config, name string) {
	host := strings.Replace(config.Host, "https://", "wss://", 1)
	path := "/apis/" + version.String() + "/nodemaintenances?watch=true&timeoutSeconds=2&fieldSelector=metadata.name%3D" + name
	dial, err := websocket.NewConfig(host+path, "https://console.example.com")
	must(err, "WebSocket configuration")
	dial.TlsConfig, err = rest.TLSConfigFor(config)
	must(err, "TLS configuration")
	connection, err := websocket.DialConfig(dial)
	must(err, "WebSocket")
	var text string
	must(websocket.Message.Receive(connection, &text), "message")
	var event struct {
		Type   string                       `json:"type"`
		Object metav1.PartialObjectMetadata `json:"object"`
	}
	must(json.Unmarshal([]byte(text), &event), text)
	check(event.Type == "ADDED" && event.Object.Name == name, "message %s", text)
	check(websocket.Message.Receive(connection, &text) != nil, "more after the end: %s", text)
	must(connection.Close(), "close")
}

func main() {
	kubeconfig := flag.String("kubeconfig", "", "the kubeconfig file")
	prefix := flag.String("prefix", "", "the start of the names of objects")
	flag.Parse()
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	must(err, "configuration")
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()

	typed(ctx, config, *prefix+"-typed")
	dynamically(ctx, config, *prefix+"-dynamic")

	client, err := dynamic.NewForConfig(config)
	must(err, "dynamic client")
	name := *prefix + "-kept"
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": version.String(), "kind": "NodeMaintenance",
		"metadata": map[string]any{"name": name, "annotations": map[string]any{"keep": "yes"}},
		"spec": map[string]any{"nodeSelector": map[string]any{"nodeSelectorTerms": []any{
			map[string]any{"matchExpressions": []any{map[string]any{"key": "nowhere", "operator": "Exists"}}}}}},
	}}
	_, err = client.Resource(resource).Create(ctx, object, metav1.CreateOptions{})
	must(err, "create")
	metadataOnly(ctx, config, name)
	overWebSocket(config, name)
	must(client.Resource(resource).Delete(ctx, name, metav1.DeleteOptions{}), "delete")
	fmt.Println("done")
}
