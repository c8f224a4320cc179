from .settings import PassSettings as PassSettings
