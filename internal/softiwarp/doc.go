// Package softiwarp is the software device.
package softiwarp
