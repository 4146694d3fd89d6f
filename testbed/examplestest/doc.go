// Package examplestest runs the examples of hooks as they are shipped: their objects are applied with the real kubectl to a real
// API server, their DaemonSets' pods come and go by the real controllers, and their scripts run in the real /bin/sh with no
// programs but those that they ask for, each with a token of the very pod that runs there. It plays the coordinator that puts
// nodes into their stages; what a coordinator does about confirmations is tested elsewhere.
package examplestest
