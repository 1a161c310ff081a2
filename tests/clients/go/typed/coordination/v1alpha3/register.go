package v1alpha3

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// SchemeGroupVersion is the group and version of the types.
var SchemeGroupVersion = schema.GroupVersion{Group: "coordination.k8s.io", Version: "v1alpha3"}

var schemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)

// AddToScheme adds the types to a scheme.
var AddToScheme = schemeBuilder.AddToScheme

// Resource is a resource of the group.
func Resource(resource string) schema.GroupResource {
	return SchemeGroupVersion.WithResource(resource).GroupResource()
}

func addKnownTypes(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(SchemeGroupVersion,
		&EvictionRequest{}, &EvictionRequestList{},
		&NodeMaintenance{}, &NodeMaintenanceList{},
		&EvictionInterceptor{}, &EvictionInterceptorList{})
	metav1.AddToGroupVersion(scheme, SchemeGroupVersion)
	return nil
}
