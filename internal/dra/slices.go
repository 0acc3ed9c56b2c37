package dra

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/lists"
)

// poolSize is the highest number of devices in a pool: the API's limit for one ResourceSlice whose devices have taints.
const poolSize = resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures

// Pools returns how many pools so many devices need.
func Pools(devices int) int { return (devices + poolSize - 1) / poolSize }

// resourceAnnotation names the resource of a ResourceSlice. The pool's name need not contain it.
const resourceAnnotation = "devmgrd.io/resource"

// Keys of taints. Their effect is always NoSchedule, their value empty.
const (
	taintUnhealthy  = "devmgrd.io/unhealthy"
	taintCordoned   = "devmgrd.io/cordoned"
	taintSuspended  = "devmgrd.io/suspended" // cordoned by devmgrd itself
	taintRefused    = "devmgrd.io/refused"   // its plugin refuses it
	taintBusy       = "devmgrd.io/busy"      // still in use after its pod's end
	taintPluginLost = "devmgrd.io/plugin-lost"
)

// An input is one resource on its way to ResourceSlices.
type input struct {
	node     string
	resource device.ResourceName
	devices  []device.DeviceStatus // in natural order of their IDs
	lost     bool                  // its plugin has been away for longer than the grace period
	saved    map[device.ID]int     // places other than 0, of listed and unlisted devices
	placed   map[device.ID]int     // places of the devices that were listed before; nil: not known
	order    []device.ID           // of the devices in their slices; others follow in natural order
	untaint  bool                  // the API server drops taints
	most     int                   // listed devices
	// attributes returns what the slice says of a device. The map is shared, and never changed.
	attributes func(device.DeviceStatus) map[resourceapi.QualifiedName]resourceapi.DeviceAttribute
}

// An output is what one resource's ResourceSlices are to show.
type output struct {
	slices []*resourceapi.ResourceSlice // without owner and generation; pools without devices have none
	saved  map[device.ID]int            // places other than 0, to be saved before the slices are published
	placed map[device.ID]int            // places of all listed devices that have one
	// homeless is the number of listed devices without a place: too many others have their name.
	homeless int
}

// show returns the ResourceSlices of a resource. It changes nothing.
func show(in input) (output, error) {
	if n := listed(in.devices); n > in.most {
		return output{saved: in.saved}, fmt.Errorf("%s has %d devices, more than dra.maxDevices %d", in.resource, n, in.most)
	}
	out := output{}
	out.placed, out.saved = place(in.devices, in.saved, in.placed)
	out.homeless = listed(in.devices) - len(out.placed)
	pools := map[int][]resourceapi.Device{}
	for _, d := range in.sorted() {
		k, placed := out.placed[d.ID]
		if !placed {
			continue
		}
		taints := in.taints(d)
		if in.untaint {
			if len(taints) > 0 && !d.Claimed {
				continue
			}
			taints = nil
		}
		pools[k] = append(pools[k], resourceapi.Device{Name: Name(d.ID), Attributes: in.attributes(d), Taints: taints})
	}
	for _, k := range slices.Sorted(maps.Keys(pools)) {
		out.slices = append(out.slices, &resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{
				Name:        SliceName(in.node, in.resource, k),
				Annotations: map[string]string{resourceAnnotation: string(in.resource)},
			},
			Spec: resourceapi.ResourceSliceSpec{
				Driver:   Driver,
				NodeName: &in.node,
				Pool:     resourceapi.ResourcePool{Name: PoolName(in.node, in.resource, k), ResourceSliceCount: 1},
				Devices:  pools[k],
			},
		})
	}
	return out, nil
}

func listed(devices []device.DeviceStatus) (n int) {
	for _, d := range devices {
		if d.Listed {
			n++
		}
	}
	return n
}

// sorted returns the devices that the scheduler may choose, in the order of the slices.
func (in input) sorted() []device.DeviceStatus {
	all := make([]device.DeviceStatus, 0, len(in.devices))
	for _, d := range in.devices {
		if d.Claimable {
			all = append(all, d)
		}
	}
	if len(in.order) == 0 {
		return all
	}
	rank := make(map[device.ID]int, len(in.order))
	for i, id := range in.order {
		rank[id] = i - len(in.order) // below 0, that of others
	}
	slices.SortStableFunc(all, func(x, y device.DeviceStatus) int { return cmp.Compare(rank[x.ID], rank[y.ID]) })
	return all
}

// taints returns why no further pod may be assigned a device. A device that is about to be released has none, and neither has one
// whose plugin has just gone away. The health of a device that devmgrd has suspended may go on changing, and is not shown.
func (in input) taints(d device.DeviceStatus) (all []resourceapi.DeviceTaint) {
	add := func(key string) {
		all = append(all, resourceapi.DeviceTaint{Key: key, Effect: resourceapi.DeviceTaintEffectNoSchedule})
	}
	if !d.Healthy && (d.Cordon == nil || !d.Cordon.Suspended) {
		add(taintUnhealthy)
	}
	switch {
	case d.Cordon == nil:
	case d.Cordon.Refused:
		add(taintRefused)
	case d.Cordon.Suspended:
		add(taintSuspended)
	default:
		add(taintCordoned)
	}
	if d.State == device.StateBusy {
		add(taintBusy)
	}
	if in.lost {
		add(taintPluginLost)
	}
	return all
}

// place returns the pools of the listed devices, and the places to save. A device keeps its place while it is listed, and has its old
// one when the plugin lists it again, unless that pool is full of other listed devices: then it gets the lowest pool with room. The
// first pool is the place of a device without another, so it needs no record. Where devices compete for the last room in a pool, those
// that were listed before are first, then those that the plugin has listed for longer.
func place(devices []device.DeviceStatus, saved, placed map[device.ID]int) (now, save map[device.ID]int) {
	now, save = make(map[device.ID]int, len(devices)), saved
	rooms := pools{}
	var others []device.DeviceStatus
	for _, d := range devices {
		k, before := placed[d.ID]
		switch {
		case !d.Listed:
		case before:
			rooms.take(k, d.ID)
			now[d.ID] = k
		default:
			others = append(others, d)
		}
	}
	slices.SortStableFunc(others, func(x, y device.DeviceStatus) int { return cmp.Compare(x.Added, y.Added) })
	var homeless []device.ID
	for _, d := range others {
		if k := saved[d.ID]; rooms.take(k, d.ID) {
			now[d.ID] = k
		} else {
			homeless = append(homeless, d.ID)
		}
	}
	if len(homeless) > 0 {
		save = map[device.ID]int{}
		maps.Copy(save, saved)
	}
	for _, id := range homeless {
		k, placed := rooms.lowest(id)
		if !placed {
			continue
		}
		now[id] = k
		save[id] = k
		if k == 0 {
			delete(save, id)
		}
	}
	return now, prune(save, devices)
}

// maxSpare is the number of places that are kept for devices that are not there, in case that they return.
const maxSpare = 4096

// prune drops the places of all devices that are not there if there are more than maxSpare.
func prune(saved map[device.ID]int, devices []device.DeviceStatus) map[device.ID]int {
	if len(saved) <= maxSpare {
		return saved
	}
	there := map[device.ID]int{}
	for _, d := range devices {
		if k, known := saved[d.ID]; known {
			there[d.ID] = k
		}
	}
	if len(saved)-len(there) <= maxSpare {
		return saved
	}
	return there
}

// pools are the names of the devices in each pool, by the number of the pool.
type pools map[int]map[string]bool

// take adds a device to a pool, and reports whether there was room. A pool has no room for two devices of one name.
func (p pools) take(k int, id device.ID) bool {
	name := Name(id)
	if len(p[k]) >= poolSize || p[k][name] {
		return false
	}
	lists.Inner(p, k)[name] = true
	return true
}

// maxNamesakes is the number of devices of one name. It takes a collision of hashes for two, and each has a pool of its own. A further one has no place
// until one of them goes.
const maxNamesakes = 8

// lowest adds a device to the lowest pool with room, unless maxNamesakes pools have a device of its name.
func (p pools) lowest(id device.ID) (k int, placed bool) {
	name, namesakes := Name(id), 0
	for _, names := range p {
		if names[name] {
			namesakes++
		}
	}
	if namesakes >= maxNamesakes {
		return 0, false
	}
	for !p.take(k, id) {
		k++
	}
	return k, true
}

// differs reports whether a ResourceSlice of the API server shows anything else than want. It ignores metadata, the pool's generation
// and the times of taints, which the API server fills in.
func differs(shown, want *resourceapi.ResourceSlice) bool {
	x, y := shown.Spec, want.Spec
	if !slices.EqualFunc(x.Devices, y.Devices, alike) {
		return true
	}
	x.Devices, y.Devices = nil, nil
	x.Pool.Generation, y.Pool.Generation = 0, 0
	return !apiequality.Semantic.DeepEqual(x, y)
}

func alike(x, y resourceapi.Device) bool {
	if !slices.EqualFunc(x.Taints, y.Taints, func(s, t resourceapi.DeviceTaint) bool { s.TimeAdded = t.TimeAdded; return s == t }) {
		return false
	}
	if !identical(x.Attributes, y.Attributes) && !maps.EqualFunc(x.Attributes, y.Attributes, equal) {
		return false
	}
	x.Taints, y.Taints, x.Attributes, y.Attributes = nil, nil, nil, nil // compared, and slow to compare by reflection
	return apiequality.Semantic.DeepEqual(x, y)
}

// identical reports whether two maps are one.
func identical(x, y attributes) bool {
	return reflect.ValueOf(x).Pointer() == reflect.ValueOf(y).Pointer()
}

// equal reports whether two values of an attribute are equal.
func equal(x, y resourceapi.DeviceAttribute) bool {
	if x.StringValue != nil && y.StringValue != nil && *x.StringValue == *y.StringValue {
		x.StringValue, y.StringValue = nil, nil
	}
	if x.IntValue != nil && y.IntValue != nil && *x.IntValue == *y.IntValue {
		x.IntValue, y.IntValue = nil, nil
	}
	return x.StringValue == y.StringValue && x.IntValue == y.IntValue && x.BoolValue == y.BoolValue && x.VersionValue == y.VersionValue &&
		len(x.StringValues)+len(x.IntValues)+len(x.BoolValues)+len(x.VersionValues) == 0
}

// updated returns want as the next version of a ResourceSlice of the API server. Taints that it has already keep their times.
func updated(shown, want *resourceapi.ResourceSlice) *resourceapi.ResourceSlice {
	next := shown.DeepCopy()
	next.Spec = *want.Spec.DeepCopy()
	next.Spec.Pool.Generation = shown.Spec.Pool.Generation + 1
	if next.Annotations == nil {
		next.Annotations = map[string]string{}
	}
	maps.Copy(next.Annotations, want.Annotations)
	type taint struct{ device, key string }
	times := map[taint]*metav1.Time{}
	for _, d := range shown.Spec.Devices {
		for _, t := range d.Taints {
			times[taint{d.Name, t.Key}] = t.TimeAdded
		}
	}
	for _, d := range next.Spec.Devices {
		for i := range d.Taints {
			d.Taints[i].TimeAdded = times[taint{d.Name, d.Taints[i].Key}]
		}
	}
	return next
}

// lacksTaints reports whether the API server has dropped the taints of a ResourceSlice that was written.
func lacksTaints(shown, written *resourceapi.ResourceSlice) bool {
	tainted := func(d resourceapi.Device) bool { return len(d.Taints) > 0 }
	return slices.ContainsFunc(written.Spec.Devices, tainted) && !slices.ContainsFunc(shown.Spec.Devices, tainted)
}
