// It is here so that the compiler takes functions without bodies: see kubelet_test.go.
