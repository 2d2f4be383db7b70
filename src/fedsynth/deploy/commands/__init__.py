"""Commands of a deployment, of the server and of sites."""

import typer

from fedsynth.deploy.commands import check, deploy, enrol, keep, operate


def register(app: typer.Typer) -> None:
    """Add the commands of this feature."""
    app.add_typer(deploy.deploy_app, name="deploy")
    app.add_typer(deploy.site_app, name="site")
    of_server, of_site = deploy.deploy_app.command, deploy.site_app.command
    of_server("admit")(enrol.deploy_admit)
    of_server("try")(enrol.deploy_try)
    of_server("serve")(operate.deploy_serve)
    of_server("run")(operate.deploy_run)
    of_server("status")(operate.deploy_status)
    of_server("watch")(operate.deploy_watch)
    of_server("stop")(operate.deploy_stop)
    of_server("purge")(operate.deploy_purge)
    of_site("join")(enrol.site_join)
    of_server("backup")(keep.deploy_backup)
    of_server("restore")(keep.deploy_restore)
    of_site("backup")(keep.site_backup)
    of_site("restore")(keep.site_restore)
    app.command()(check.doctor)
    app.command()(check.audit)
