package matrix

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/devmgrd/devmgrd/test/cluster"
)

// A Test is one of those that are played, with what it shows of a release.
type Test struct{ Package, Name, Shows string }

// The packages of the tests, below test. MainJob's tests take no Kubernetes.
const (
	E2E     = "e2e"
	MainJob = "mainjob"
)

// Tests are the tests whose outcome depends on the runtime, the kubelet or the API server.
var Tests = []Test{
	{E2E, "TestMainJob_SamplePlugin_PodsGetDevices", "an unmodified plugin in a pod registers with devmgrd; pods get its devices"},
	{E2E, "TestMainJob_CDI_PodsGetDevices", "CDI devices"},
	{E2E, "TestInjection_PluginAnswer_IsInjectedExactly", "a container has exactly what the plugin answered"},
	{E2E, "TestInjection_SamePodAndPlugin_SameAsKubelet", "containers have what the kubelet would give them"},
	{E2E, "TestInjection_GrantMadeInAllocate_IsInjected", "files that a plugin makes while it is asked"},
	{E2E, "TestPods_ContainerKinds_ShareDevices", "init containers, sidecars, debug containers"},
	{E2E, "TestWait_PluginMissing_PodStartsWhenItReturns", "a pod waits for its plugin"},
	{E2E, "TestRestart_Kill9_NothingChanges", "`kill -9` of devmgrd"},
	{E2E, "TestContainerd_Restarts_NothingIsLost", "restarts of the runtime"},
	{E2E, "TestContainerd_RestartsWhilePodsEnd_NothingLeaks", "pods that end while the runtime restarts"},
	{E2E, "TestPods_EndInAnyWay_ReleaseDevices", "every end of a pod releases its devices"},
	{E2E, "TestContainerEnd_HiddenByAnotherNRIPlugin_ReleasesDevices", "events that the runtime does not send"},
	{E2E, "TestStateFile_Lost_RunningContainersKeepDevices", "a lost state file: what containers say of themselves"},
	{E2E, "TestReboot_GrantsAreGone_AreGrantedAgain", "a reboot"},
	{E2E, "TestKubelet_Restarts_NoPodIsRejected", "restarts of the kubelet"},
	{E2E, "TestStaticPods_WithAndWithoutAnnotation_GetDevices", "static pods"},
	{MainJob, "TestContainer_WithoutItsDevice_IsRefusedAndStartsLater", "pods without Kubernetes"},
	{MainJob, "TestKill9_EachComponent_NothingIsLost", "`kill -9` of devmgrd, the runtime and the plugin, without Kubernetes"},
	{E2E, "TestFailClosed_DevmgrdAway_OnlyDevicePodsWait", "while devmgrd is away, pods with devices wait"},
	{E2E, "TestContainer_StartedWhileDevmgrdIsAway_IsReported", "containers that have started without their devices are reported"},
	{E2E, "TestPodResources_SamePods_SameAsKubelet", "PodResources answers as the kubelet does"},
	{E2E, "TestPodResources_Takeover_ReadersSeeNoGap", "PodResources at the kubelet's path"},
	{E2E, "TestMigration_Import_PodsRunOn", "taking over from the kubelet"},
	{E2E, "TestMigration_Export_PodsRunOn", "handing back to the kubelet"},
	{E2E, "TestTopology_TwoResources_OneNUMANode", "devices of one NUMA node"},
}

// A Cell is a cluster of certain releases, and what happened there. Empty outcomes: the cell has not been played.
type Cell struct {
	Containerd string             `json:"containerd,omitempty"` // the release, "2.1"; "": the newest
	Kubernetes string             `json:"kubernetes,omitempty"`
	CRIO       bool               `json:"crio,omitempty"` // instead of containerd
	Runtime    string             `json:"runtime"`        // name and version, "containerd 2.1.9"
	Version    string             `json:"version"`        // of Kubernetes, "1.36.3"
	Date       string             `json:"date"`           // of the run
	Outcomes   map[string]Outcome `json:"outcomes"`       // by test
}

// An Outcome is a test's in a cell.
type Outcome struct {
	Passed bool              `json:"passed"`
	Lacks  []cluster.Feature `json:"lacks,omitempty"` // what the release does not have, as the test has met it
}

// Name names the cell for people, and for CELLS.
func (c Cell) Name() string { return c.Runtime + ", Kubernetes " + c.Version }

// Same reports whether two cells are clusters of the same releases.
func (c Cell) Same(other Cell) bool {
	return c.Containerd == other.Containerd && c.Kubernetes == other.Kubernetes && c.CRIO == other.CRIO
}

//go:embed results.yaml
var results []byte

// Results are the cells as they were last played, when the program was built.
func Results() ([]Cell, error) { return Parse(results) }

// Parse reads the cells of results.yaml.
func Parse(text []byte) (all []Cell, err error) {
	if err := yaml.UnmarshalStrict(text, &all); err != nil {
		return nil, fmt.Errorf("reading results.yaml: %w", err)
	}
	return all, nil
}

// notes say what a missing feature means, in the tables.
var notes = map[cluster.Feature]string{
	cluster.CDI:         "CDI devices are refused: the container waits, with the reason.",
	cluster.Permissions: "Device nodes with less than read and write access, and grants that overlap a CDI device, are refused.",
	cluster.Arguments:   "Containers whose command line refers to a plugin's variable as `$(NAME)` are refused.",
	cluster.Validation:  "Containers that are created while devmgrd is away start without their devices; devmgrd reports them when it is back.",
	cluster.Policies:    "The policy that makes pods wait for devmgrd cannot be installed; a pod's own annotation does the same.",
	cluster.PodGet:      "The kubelet does not serve PodResources Get by default; devmgrd does.",
}

// features are those of notes in a fixed order: a note has its number by that order.
var features = []cluster.Feature{cluster.CDI, cluster.Permissions, cluster.Arguments, cluster.Validation, cluster.Policies, cluster.PodGet}

// A group is the cells that differ in one program.
type group struct {
	title string
	has   func(Cell) bool
	head  func(Cell) string
}

const kubernetes = "Kubernetes"

var groups = []group{
	{"Container runtimes", func(c Cell) bool { return c.Kubernetes == "" }, func(c Cell) string { return c.Runtime }},
	{kubernetes, func(c Cell) bool { return c.Kubernetes != "" || c.Containerd == "" && !c.CRIO }, func(c Cell) string {
		if c.Containerd != "" {
			return c.Version + " on " + c.Runtime
		}
		return c.Version
	}},
}

func (g group) of(cells []Cell) []Cell {
	return slices.DeleteFunc(slices.Clone(cells), func(c Cell) bool { return !g.has(c) })
}

// Summary returns the sentence of README.md: the releases with which all tests pass, and those that lack features.
func Summary(cells []Cell) string {
	var whole, partly, others []string
	for _, g := range groups {
		names := map[bool][]string{} // by whether something is missing
		for _, c := range g.of(cells) {
			if strings.HasPrefix(c.passed(), fmt.Sprintf("%d ", len(Tests))) {
				names[c.lacks() != ""] = append(names[c.lacks() != ""], g.head(c))
			} else {
				if !slices.Contains(others, c.Name()) { // the newest of both is in both groups
					others = append(others, c.Name())
				}
			}
		}
		for lacking, all := range map[bool]*[]string{false: &whole, true: &partly} {
			if names[lacking] != nil {
				*all = append(*all, g.list(names[lacking]))
			}
		}
	}
	text := fmt.Sprintf("All %d pass on %s. ", len(Tests), strings.Join(whole, " and on "))
	if partly != nil {
		text += fmt.Sprintf("They pass in part on %s, which lack features: devmgrd refuses what needs these, or leaves it out. ", strings.Join(partly, " and on "))
	}
	if others != nil {
		text += "Some fail on " + strings.Join(others, ", ") + ". "
	}
	return strings.TrimSpace(text) + "\n"
}

// list names releases of the group.
func (g group) list(heads []string) string {
	names := strings.ReplaceAll(strings.Join(heads, ", "), ", containerd ", ", ")
	if g.title == kubernetes {
		names = kubernetes + " " + names
	}
	return names
}

// Markdown returns the part of docs/compatibility.md that the results make: what each release has shown, and what it lacks.
func Markdown(cells []Cell) string {
	var b strings.Builder
	whole := fmt.Sprintf("%d of %d pass", len(Tests), len(Tests))
	b.WriteString("\n| releases | tests | lacks | played |\n|---|---|---|---|\n")
	for _, g := range groups {
		releases := map[string][]string{} // by the rest of the line
		var lines []string
		for _, c := range g.of(cells) {
			passed := c.passed()
			if n := c.partly(); n > 0 && passed == whole {
				passed = fmt.Sprintf("%d pass, %d in part", len(Tests)-n, n)
			}
			line := fmt.Sprintf("%s | %s | %s |", passed, c.lacks(), c.Date)
			if releases[line] == nil {
				lines = append(lines, line)
			}
			releases[line] = append(releases[line], g.head(c))
		}
		for _, line := range lines {
			fmt.Fprintf(&b, "| %s | %s\n", g.list(releases[line]), line)
		}
	}
	fmt.Fprintf(&b, "\n*In part*: devmgrd refuses what needs the lacking feature, or the test leaves it out. The runtimes were played with %s, Kubernetes with %s.\n\n",
		distinct(groups[0].of(cells), func(c Cell) string { return kubernetes + " " + c.Version }),
		distinct(slices.DeleteFunc(groups[1].of(cells), func(c Cell) bool { return c.Containerd != "" }), func(c Cell) string { return c.Runtime }))
	for i, f := range features {
		fmt.Fprintf(&b, "%d. %s\n", i+1, notes[f])
	}
	return b.String()
}

// distinct names what cells have, each once.
func distinct(cells []Cell, of func(Cell) string) string {
	var names []string
	for _, c := range cells {
		if name := of(c); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}

// passed counts the tests that have passed, and names those that have not.
func (c Cell) passed() string {
	passed := 0
	var failed, missing []string
	for _, t := range Tests {
		switch o, played := c.Outcomes[t.Name]; {
		case !played:
			missing = append(missing, "`"+t.Name+"`")
		case !o.Passed:
			failed = append(failed, "`"+t.Name+"`")
		default:
			passed++
		}
	}
	text := fmt.Sprintf("%d of %d pass", passed, len(Tests))
	if failed != nil {
		text += "; **fails**: " + strings.Join(failed, ", ")
	}
	if missing != nil {
		text += "; not played: " + strings.Join(missing, ", ")
	}
	return text
}

// partly counts the tests that have found something missing.
func (c Cell) partly() (n int) {
	for _, o := range c.Outcomes {
		if len(o.Lacks) > 0 {
			n++
		}
	}
	return n
}

// lacks numbers the notes on what the tests have found missing.
func (c Cell) lacks() string {
	var numbers []string
	for i, f := range features {
		for _, o := range c.Outcomes {
			if slices.Contains(o.Lacks, f) {
				numbers = append(numbers, fmt.Sprint(i+1))
				break
			}
		}
	}
	return strings.Join(numbers, ", ")
}

// Table is the outcomes for a terminal: a line for each test that is not simply passed, and the counts.
func Table(cells []Cell) string {
	var b strings.Builder
	for _, c := range cells {
		passed := 0
		var lines []string
		for _, t := range Tests {
			o, played := c.Outcomes[t.Name]
			switch {
			case !played:
				lines = append(lines, "not played: "+t.Name)
			case !o.Passed:
				lines = append(lines, "FAILS: "+t.Name)
			default:
				passed++
			}
			for _, f := range o.Lacks {
				lines = append(lines, fmt.Sprintf("without %s: %s", f, t.Name))
			}
		}
		fmt.Fprintf(&b, "%s: %d of %d pass\n", c.Name(), passed, len(Tests))
		for _, l := range lines {
			fmt.Fprintf(&b, "    %s\n", l)
		}
	}
	return b.String()
}
