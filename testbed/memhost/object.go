package memhost

import (
	"fmt"

	"github.com/godbus/dbus/v5"
)

const propertiesIface = "org.freedesktop.DBus.Properties"

// objects serves the properties of all objects of a service: get returns those of one object and interface, nil if there is
// no such object.
type objects struct {
	get func(path dbus.ObjectPath, iface string) map[string]any
}

// export serves the properties of the object at root and of all below it.
func (o objects) export(conn *dbus.Conn, root dbus.ObjectPath) error {
	return conn.ExportSubtree(o, root, propertiesIface)
}

// GetAll implements org.freedesktop.DBus.Properties.
func (o objects) GetAll(m dbus.Message, iface string) (map[string]dbus.Variant, *dbus.Error) {
	path, _ := m.Headers[dbus.FieldPath].Value().(dbus.ObjectPath)
	values := o.get(path, iface)
	if values == nil {
		return nil, dbus.NewError("org.freedesktop.DBus.Error.UnknownObject", []any{fmt.Sprintf("Unknown object '%s'.", path)})
	}
	all := map[string]dbus.Variant{}
	for name, value := range values {
		all[name] = dbus.MakeVariant(value)
	}
	return all, nil
}

// Get implements org.freedesktop.DBus.Properties.
func (o objects) Get(m dbus.Message, iface, name string) (dbus.Variant, *dbus.Error) {
	all, err := o.GetAll(m, iface)
	value, there := all[name]
	if err == nil && !there {
		err = dbus.NewError("org.freedesktop.DBus.Error.UnknownProperty", []any{"Unknown property " + name + "."})
	}
	return value, err
}
