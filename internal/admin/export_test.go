package admin

// Ends is what would end a wait.
var Ends = ends
