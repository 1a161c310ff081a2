package v1alpha3

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// EvictionRequest asks that one pod leaves its node gracefully.
//
// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
type EvictionRequest struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              EvictionRequestSpec   `json:"spec"`
	Status            EvictionRequestStatus `json:"status,omitempty"`
}

// EvictionRequestList is a list of requests.
//
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
type EvictionRequestList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []EvictionRequest `json:"items"`
}

// EvictionRequestSpec is the desired eviction.
type EvictionRequestSpec struct {
	Type   string         `json:"type,omitempty"`
	Target EvictionTarget `json:"target"`
	// +listType=map
	// +listMapKey=name
	Requesters               []Requester `json:"requesters,omitempty"`
	HeartbeatDeadlineSeconds *int32      `json:"heartbeatDeadlineSeconds,omitempty"`
	TTLSecondsAfterFinished  *int32      `json:"ttlSecondsAfterFinished,omitempty"`
}

// EvictionTarget is a union.
type EvictionTarget struct {
	Pod *PodReference `json:"pod,omitempty"`
}

// PodReference names one instance of a pod.
type PodReference struct {
	Name string    `json:"name"`
	UID  types.UID `json:"uid"`
}

// Requester wants the eviction.
//
// +structType=atomic
type Requester struct {
	Name string `json:"name"`
}

// EvictionRequestStatus is the observed progress of the eviction.
type EvictionRequestStatus struct {
	ObservedGeneration *int64 `json:"observedGeneration,omitempty"`
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// +listType=map
	// +listMapKey=name
	TargetInterceptors []TargetInterceptor `json:"targetInterceptors,omitempty"`
	// +listType=set
	ActiveInterceptors []string `json:"activeInterceptors,omitempty"`
	// +listType=set
	ProcessedInterceptors []string `json:"processedInterceptors,omitempty"`
	// +listType=map
	// +listMapKey=name
	Interceptors                      []InterceptorStatus `json:"interceptors,omitempty"`
	EvictionRequestCancellationPolicy string              `json:"evictionRequestCancellationPolicy,omitempty"`
	PodEvictionStatus                 *PodEvictionStatus  `json:"podEvictionStatus,omitempty"`
}

// TargetInterceptor is an interceptor of the pod.
//
// +structType=atomic
type TargetInterceptor struct {
	Name string `json:"name"`
}

// InterceptorStatus is what an interceptor reports.
//
// +structType=atomic
type InterceptorStatus struct {
	Name               string       `json:"name"`
	ActivationTime     *metav1.Time `json:"activationTime,omitempty"`
	StartTime          *metav1.Time `json:"startTime,omitempty"`
	HeartbeatTime      *metav1.Time `json:"heartbeatTime,omitempty"`
	ExpectedFinishTime *metav1.Time `json:"expectedFinishTime,omitempty"`
	CompletionTime     *metav1.Time `json:"completionTime,omitempty"`
	Message            string       `json:"message,omitempty"`
}

// PodEvictionStatus has the results of calls of the eviction API.
type PodEvictionStatus struct {
	FailedAPIEvictionCounter int32        `json:"failedAPIEvictionCounter"`
	LastAttemptTime          *metav1.Time `json:"lastAttemptTime,omitempty"`
	NextAttemptTime          *metav1.Time `json:"nextAttemptTime,omitempty"`
}

// NodeMaintenance declares that nodes are to be taken out of service.
//
// +genclient
// +genclient:nonNamespaced
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
type NodeMaintenance struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              NodeMaintenanceSpec   `json:"spec"`
	Status            NodeMaintenanceStatus `json:"status,omitempty"`
}

// NodeMaintenanceList is a list of maintenances.
//
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
type NodeMaintenanceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []NodeMaintenance `json:"items"`
}

// NodeMaintenanceSpec is the desired maintenance.
type NodeMaintenanceSpec struct {
	NodeSelector *corev1.NodeSelector `json:"nodeSelector"`
	Stage        string               `json:"stage,omitempty"`
	// +listType=atomic
	DrainPlan []DrainPlanEntry `json:"drainPlan,omitempty"`
	Reason    string           `json:"reason,omitempty"`
}

// DrainPlanEntry is an entry of a plan.
type DrainPlanEntry struct {
	PodType     string                `json:"podType"`
	PodPriority int32                 `json:"podPriority"`
	PodSelector *metav1.LabelSelector `json:"podSelector,omitempty"`
}

// NodeMaintenanceStatus is the observed progress of the maintenance.
type NodeMaintenanceStatus struct {
	// +listType=map
	// +listMapKey=name
	StageStatuses []StageStatus `json:"stageStatuses,omitempty"`
	DrainStatus   *DrainStatus  `json:"drainStatus,omitempty"`
	// +listType=atomic
	NodeStatuses  []NodeStatus `json:"nodeStatuses,omitempty"`
	SelectedNodes *int32       `json:"selectedNodes,omitempty"`
	DrainedNodes  *int32       `json:"drainedNodes,omitempty"`
	// +listType=atomic
	Blockers []Blocker `json:"blockers,omitempty"`
	// +listType=set
	CordonedBefore []string `json:"cordonedBefore,omitempty"`
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// StageStatus tells when a stage started.
type StageStatus struct {
	Name           string       `json:"name"`
	StartTimestamp *metav1.Time `json:"startTimestamp,omitempty"`
}

// DrainStatus is the progress over all nodes.
type DrainStatus struct {
	// +listType=atomic
	ReachedDrainTargets        []DrainPlanEntry `json:"reachedDrainTargets,omitempty"`
	DrainMessage               string           `json:"drainMessage,omitempty"`
	PodsPendingEvictionRequest int32            `json:"podsPendingEvictionRequest"`
	ActiveEvictionRequests     int32            `json:"activeEvictionRequests"`
}

// NodeStatus is the progress on one node.
type NodeStatus struct {
	NodeRef NodeReference `json:"nodeRef"`
	// +listType=atomic
	DrainTargets               []DrainPlanEntry `json:"drainTargets,omitempty"`
	DrainMessage               string           `json:"drainMessage,omitempty"`
	PodsPendingEvictionRequest int32            `json:"podsPendingEvictionRequest"`
	ActiveEvictionRequests     int32            `json:"activeEvictionRequests"`
}

// NodeReference names a node.
type NodeReference struct {
	Name string `json:"name"`
}

// Blocker holds the drain.
type Blocker struct {
	Node      string       `json:"node,omitempty"`
	Namespace string       `json:"namespace,omitempty"`
	Pod       string       `json:"pod,omitempty"`
	Request   string       `json:"request,omitempty"`
	Reason    string       `json:"reason"`
	Message   string       `json:"message,omitempty"`
	Since     *metav1.Time `json:"since"`
}

// EvictionInterceptor registers an interceptor for all pods that match a rule.
//
// +genclient
// +genclient:nonNamespaced
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
type EvictionInterceptor struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              EvictionInterceptorSpec   `json:"spec"`
	Status            EvictionInterceptorStatus `json:"status,omitempty"`
}

// EvictionInterceptorList is a list of interceptors.
//
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
type EvictionInterceptorList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []EvictionInterceptor `json:"items"`
}

// EvictionInterceptorSpec is the rule.
type EvictionInterceptorSpec struct {
	InterceptorName   string                `json:"interceptorName"`
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`
	PodSelector       *metav1.LabelSelector `json:"podSelector,omitempty"`
	// +listType=map
	// +listMapKey=name
	MatchConditions          []MatchCondition `json:"matchConditions,omitempty"`
	Priority                 *int32           `json:"priority,omitempty"`
	Role                     string           `json:"role,omitempty"`
	HeartbeatDeadlineSeconds *int32           `json:"heartbeatDeadlineSeconds,omitempty"`
}

// MatchCondition is a condition in CEL.
type MatchCondition struct {
	Name       string `json:"name"`
	Expression string `json:"expression"`
}

// EvictionInterceptorStatus is the state of the rule.
type EvictionInterceptorStatus struct {
	MatchedPods *int32 `json:"matchedPods,omitempty"`
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
